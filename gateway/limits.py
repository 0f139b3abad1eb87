"""A bound on request bodies, enforced while they arrive: what is too large is never held whole."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cornstalk.errors import TooLarge
from gateway.http import error_response


class BodyLimit:
    """ASGI middleware: 413 as soon as a body is declared, or turns out, to be over `limit` bytes."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app, self._limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self._limit:
            await self._refuse(scope, receive, send)
            return
        taken = 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._limit:
                raise TooLarge(f"a body has at most {self._limit} bytes")
            return message

        await self._app(scope, counted, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        await error_response(TooLarge(f"a body has at most {self._limit} bytes"))(scope, receive, send)
