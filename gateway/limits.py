"""A bound on request bodies, enforced while they arrive: what is too large or too slow is never waited for or held."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cornstalk.errors import BadInput, TooLarge
from gateway.errors import error_response

SILENCE: Final = 30.0
"""Seconds a client may pause in the middle of a body."""


class SlowBody(BadInput):
    """Raised when a client stops in the middle of a body."""

    code = "slow_body"
    status = 408


class BodyLimit:
    """ASGI middleware: 413 as soon as a body is declared, or turns out, to be over `limit` bytes; 408 when it stops."""

    def __init__(self, app: ASGIApp, limit: int, silence: float = SILENCE) -> None:
        self._app, self._limit, self._silence = app, limit, silence

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self._limit:
            await error_response(self._too_large(declared.decode()))(scope, receive, send)
            return
        taken, arriving = 0, True

        async def bounded() -> Message:
            nonlocal taken, arriving
            try:
                async with asyncio.timeout(self._silence if arriving else None):
                    message = await receive()
            except TimeoutError:
                raise SlowBody(f"expected the rest of the body within {self._silence:g} s, got nothing") from None
            taken += len(message.get("body", b""))
            arriving = message.get("more_body", False)
            if taken > self._limit:
                raise self._too_large("more")
            return message

        await self._app(scope, bounded, send)

    def _too_large(self, got: str) -> TooLarge:
        return TooLarge(f"expected a body of at most {self._limit} bytes, got {got[:20]}")
