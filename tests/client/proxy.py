"""A TCP proxy that cuts each connection at a given byte of the answer, or of what is asked."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Self


class CuttingProxy:
    """Forwards to `port`. Each connection ends after as many bytes of the answer as `cuts` says next, None: never;
    or after as many bytes of what is asked as `asked` says.

    Every other cut of an answer is a reset, so that bytes on their way are lost too.
    """

    def __init__(self, port: int, cuts: Iterator[int | None], asked: Iterator[int | None] | None = None) -> None:
        self._port, self._cuts, self._asked = port, cuts, asked or itertools.repeat(None)
        self._open: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}
        self.connections = 0
        self.resets = 0
        self.url = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for writers in self._open.values():
            for writer in writers:
                writer.transport.abort()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.connections += 1
        their_reader, their_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._open[task] = [writer, their_writer]
        asking = asyncio.create_task(self._ask(reader, their_writer, writer, next(self._asked)))
        try:
            with suppress(OSError):
                await self._answer(their_reader, writer, next(self._cuts))
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            their_writer.transport.abort()
            writer.close()
            del self._open[task]

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: int | None) -> None:
        while data := await reader.read(65536):
            writer.write(data if left is None else data[:left])
            await writer.drain()
            if left is not None and (left := left - len(data)) <= 0:
                self.resets += 1
                if self.resets % 2:
                    writer.transport.abort()
                return

    async def _ask(
        self,
        reader: asyncio.StreamReader,
        their_writer: asyncio.StreamWriter,
        writer: asyncio.StreamWriter,
        left: int | None,
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                their_writer.write(data if left is None else data[:left])
                await their_writer.drain()
                if left is not None and (left := left - len(data)) <= 0:
                    self.resets += 1
                    their_writer.close()
                    writer.transport.abort()
                    return
