"""A WebSocket client as a test uses it: frames out, frames by request in."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from cornstalk.frames import join
from gateway.frames import split

WITHIN = 20.0
"""Seconds until a frame that does not come is a hang."""

Frame = dict[str, Any]


class Client:
    """One connection."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.frames: list[Frame] = []
        """Everything that was received, in order; a binary frame's bytes are its `data`."""

    async def send(self, type: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": type, **fields}))

    async def piece(self, id: str, field: str, data: str | bytes) -> None:
        if isinstance(data, str):
            await self.send("input", id=id, field=field, data=data)
        else:
            await self.socket.send(join(json.dumps({"type": "input", "id": id, "field": field}).encode(), data))

    async def receive(self) -> Frame:
        async with asyncio.timeout(WITHIN):
            message = await self.socket.recv()
        if isinstance(message, bytes):
            header, data = split(message)
            frame = {**header, "data": data}
        else:
            frame = json.loads(message)
        self.frames.append(frame)
        return frame

    async def until(self, found: Callable[[Frame], bool]) -> Frame:
        """The first frame from here on for which this holds."""
        while not found(frame := await self.receive()):
            pass
        return frame

    async def next(self, id: str, *types: str) -> Frame:
        """The next frame of a request with one of these types."""
        return await self.until(lambda f: f.get("id") == id and f["type"] in types)

    async def to_end(self, *ids: str) -> None:
        """Receives until each of these requests has ended."""
        while not all(self.ended(id) for id in ids):
            await self.receive()

    def ended(self, id: str) -> bool:
        return any(f["type"] in ("end", "error") for f in self.of(id))

    def of(self, id: str) -> list[Frame]:
        return [f for f in self.frames if f.get("id") == id]

    def told(self, id: str, field: str) -> Any:
        """What the chunks of a field add up to."""
        return joined([f["data"] for f in self.of(id) if f["type"] == "chunk" and f["field"] == field])

    async def closed(self) -> tuple[int, str]:
        """Code and reason, once the server has closed."""
        async with asyncio.timeout(WITHIN):
            await self.socket.wait_closed()
        return self.socket.close_code or 0, self.socket.close_reason or ""


def joined(pieces: list[Any]) -> Any:
    if not pieces:
        return ""
    return pieces[0][:0].join(pieces) if isinstance(pieces[0], (str, bytes)) else [x for p in pieces for x in p]


def narrow(port: int) -> dict[str, Any]:
    """Options of a connection that takes little unread: left alone, the kernel may take 32 MiB for its reader."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
    sock.connect(("127.0.0.1", port))
    sock.setblocking(False)
    return {"sock": sock, "max_queue": 1}


@asynccontextmanager
async def connected(port: int, app: str, **options: Any) -> AsyncIterator[Client]:
    url = f"ws://127.0.0.1:{port}/apps/{app}"
    async with connect(url, max_size=None, proxy=None, **options) as socket:
        yield Client(socket)
