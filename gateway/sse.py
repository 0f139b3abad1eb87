"""Server-sent events: how one is written, and the response that carries them.

A gateway has thousands of them a second, for as many clients: what stands between an event and its socket is paid for
each time (docs/measurements.md, SSE).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.encode import to_json
from gateway.events import Event

_SEND: Final = "cornstalk.send"

Say = Callable[[Event], Awaitable[None]]
"""Sends an event to a client; waits while it takes none."""
Tell = Callable[[Say], Coroutine[Any, Any, None]]
"""Says everything, an event after the other."""


class EventStream(Response):
    """Tells a client to the end, or until it leaves. Events go past the middlewares: they look at the start alone."""

    media_type = "text/event-stream"

    def __init__(self, tell: Tell, headers: dict[str, str]) -> None:
        super().__init__(None, 200, headers | {"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["Content-Length"]
        self._tell = tell

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        direct: Send = scope.get(_SEND, send)

        def say(event: Event) -> Awaitable[None]:
            return direct({"type": "http.response.body", "body": frame(event), "more_body": True})

        telling = asyncio.create_task(self._tell(say))  # of its own, with nothing beneath it to be woken first
        left = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait((telling, left), return_when=asyncio.FIRST_COMPLETED)
            if telling.done():
                await telling
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            telling.cancel()
            left.cancel()
            await asyncio.wait((telling, left))


def directly(app: ASGIApp) -> ASGIApp:
    """`app`, with a scope that has the server's own `send` for an EventStream. Around all other middlewares."""

    async def known(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, _SEND: send}, receive, send)

    return known


def frame(event: Event) -> bytes:
    """As it goes over the wire. A ping is a comment."""
    if event.kind == "ping":
        return b": ping\n\n"
    if event.seq:
        return b"event: %b\nid: %d\ndata: %b\n\n" % (event.kind.encode(), event.seq, to_json(event.data))
    return b"event: %b\ndata: %b\n\n" % (event.kind.encode(), to_json(event.data))


async def _disconnected(receive: Receive) -> None:
    message: dict[str, Any] = {"type": ""}
    while message["type"] != "http.disconnect":
        message = dict(await receive())
