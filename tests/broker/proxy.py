"""A TCP proxy in front of a server, to lose answers for real."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self
from urllib.parse import urlparse


class Proxy:
    """Forwards both ways. While `muted`, what the server says is swallowed, and counted; `cut` ends all connections.

    `freeze` leaves the connections that there are open, and moves nothing on them any more; new ones work.
    From `refuse` to `accept` there are no new ones.
    """

    def __init__(self, url: str) -> None:
        self._port = urlparse(url).port
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._frozen: set[asyncio.StreamWriter] = set()
        self.muted = False
        self.swallowed = 0  # bytes
        self.url = ""
        self._own_port = 0

    async def __aenter__(self) -> Self:
        await self.accept()
        return self

    async def accept(self) -> None:
        """Again at the same address."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self._own_port)
        self._own_port = self._server.sockets[0].getsockname()[1]
        self.url = f"nats://127.0.0.1:{self._own_port}"

    def refuse(self) -> None:
        self._server.close()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        self.muted = False
        for writer in self._writers:
            writer.close()

    def freeze(self) -> None:
        self._frozen |= self._writers

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.close()  # the server is away
            return
        for source, target, answers in ((reader, server_writer, False), (server_reader, writer, True)):
            self._writers.add(target)
            task = asyncio.create_task(self._forward(source, target, answers))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _forward(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, answers: bool) -> None:
        try:
            while data := await source.read(65536):
                if target in self._frozen:
                    await asyncio.Event().wait()
                if answers and self.muted:
                    self.swallowed += len(data)
                else:
                    target.write(data)
                    await target.drain()
        except OSError:
            pass
        finally:
            self._writers.discard(target)
            target.close()
