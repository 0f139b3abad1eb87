"""A bound on the HTTP requests of one gateway, those that stream their answer among them.

Admission looks at queues; this stands before everything that a request costs here. A gateway that got no processor for
a while would else take all that waits in its listening socket at once.
"""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from cornstalk.errors import Unavailable
from gateway.errors import error_response

ALWAYS: Final = frozenset({"/healthz", "/readyz"})
"""What a supervisor asks: a gateway that is full is neither dead nor broken."""
RETRY_AFTER: Final = 1.0
"""Seconds. Nobody knows when a client will leave."""


class ConcurrencyLimit:
    """ASGI middleware: 503 for who comes while `limit` requests are under way. Who cancels one makes room."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app, self._limit = app, limit
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in ALWAYS or scope["method"] == "DELETE":
            await self._app(scope, receive, send)
            return
        if self._running >= self._limit:
            full = Unavailable(
                f"this gateway has {self._limit} requests under way, as many as it takes: try another, or later",
                RETRY_AFTER,
            )
            await error_response(full)(scope, receive, send)
            return
        self._running += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._running -= 1
