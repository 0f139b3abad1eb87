"""Joins small pieces of a stream output into few chunks: the first at once, then one each 30 ms or 32 KiB."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final, Protocol

from msgspec import Struct

from cornstalk.messages import encode

DELAY: Final = 0.03
"""Seconds a piece may wait for others."""

CHUNK_BYTES: Final = 32 << 10
"""Enough for a chunk: it does not wait any longer."""

LARGEST: Final = 256 << 10
"""A larger piece is cut, so that every chunk fits in a message."""

WAITING_BYTES: Final = 4 * LARGEST
"""What may wait for a slow append; `add` blocks above it."""


class Appends(Protocol):
    """What a ChunkWriter does."""

    async def append(self, payload: Any, tokens: tuple[int, ...] = ()) -> int: ...


class Part(Struct, frozen=True):
    """Something to append: a whole piece, or one cut out of it. `tokens` stand with the last part of their piece."""

    payload: Any
    size: int  # bytes
    tokens: tuple[int, ...] = ()


class Closed(RuntimeError):
    """Raised to who goes on with an output that was closed or abandoned."""


class Coalescer:
    """Appends in the background, in order, one at a time. str, bytes and list pieces are joined with their like.

    An error of the writer (Superseded, RequestEnded, DeadlineExceeded, ...) is raised by the next call, and by every
    one after it. Use as a context manager, or call `close`, or the last pieces are not stored.
    """

    def __init__(self, writer: Appends) -> None:
        self._writer = writer
        self._parts: list[Part] = []
        self._bytes = 0
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._hurry = False
        self._closed = False
        self._error: BaseException | None = None
        self._task: asyncio.Task[None] | None = None

    async def add(self, piece: Any, tokens: tuple[int, ...] = ()) -> None:
        """Takes a piece and the tokens it came from; blocks while a slow server has more than 1 MiB to store first."""
        while self._bytes > WAITING_BYTES and self._error is None:
            self._room.clear()
            await self._room.wait()
        self._raise_error()
        if self._closed:
            raise Closed("this output is closed")
        for part in _parts(piece, tokens):
            self._parts.append(part)
            self._bytes += part.size
        if self._parts:
            self._idle.clear()
            self._news.set()
            if self._task is None:
                self._task = asyncio.create_task(self._run())

    async def flush(self) -> None:
        """Returns when every piece so far is stored."""
        self._hurry = True
        self._news.set()
        try:
            await self._idle.wait()
        finally:
            self._hurry = False
        self._raise_error()

    async def close(self) -> None:
        """Flushes and ends. Idempotent."""
        self._closed = True
        try:
            await self.flush()
        finally:
            await self._end_task()

    async def abandon(self) -> None:
        """Ends without storing what waits: this attempt failed. Who waits in another call gets Closed."""
        self._closed = True
        await self._end_task()
        self._error = self._error or Closed("this output was abandoned")
        self._room.set()
        self._idle.set()

    async def __aenter__(self) -> Coalescer:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await (self.close() if kind is None else self.abandon())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        stored_at = loop.time() - DELAY
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                await self._gather(stored_at + DELAY)
                while self._parts:
                    joined, count = _join(self._parts)
                    await self._writer.append(joined.payload, joined.tokens)
                    del self._parts[:count]
                    self._bytes -= joined.size
                    self._room.set()
                    stored_at = loop.time()
                    if self._bytes < CHUNK_BYTES and not self._hurry:
                        break
                if self._parts:
                    self._news.set()
                else:
                    self._idle.set()
        except Exception as error:
            self._error = error
            self._idle.set()
            self._room.set()

    async def _gather(self, until: float) -> None:
        """Waits for more pieces until there are enough, or somebody waits for them, or their time is over."""
        try:
            async with asyncio.timeout_at(until):
                while self._bytes < CHUNK_BYTES and not self._hurry:
                    await self._news.wait()
                    self._news.clear()
        except TimeoutError:
            pass

    async def _end_task(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error


def _parts(piece: Any, tokens: tuple[int, ...]) -> Iterator[Part]:
    """The piece, cut where it is too large; the size of a list is roughly known."""
    if not isinstance(piece, str | bytes | list):
        yield Part(piece, len(encode(piece)), tokens)
        return
    if len(piece) == 0:
        return
    size = len(piece) if isinstance(piece, bytes) else len(encode(piece))
    step = len(piece) if size <= LARGEST else max(1, len(piece) * LARGEST // (2 * size))
    for start in range(0, len(piece), step):
        part = piece[start : start + step]
        last = start + step >= len(piece)
        yield Part(part, size * len(part) // len(piece), tokens if last else ())


def _join(parts: list[Part]) -> tuple[Part, int]:
    """The first parts of one kind as one, and how many they are."""
    kind = type(parts[0].payload)
    if kind not in (str, bytes, list):
        return parts[0], 1
    count = size = 0
    while count < len(parts) and type(parts[count].payload) is kind and (count == 0 or size < CHUNK_BYTES):
        size += parts[count].size
        count += 1
    payloads = [part.payload for part in parts[:count]]
    tokens = tuple(token for part in parts[:count] for token in part.tokens)
    joined = [x for p in payloads for x in p] if kind is list else kind().join(payloads)
    return Part(joined, size, tokens), count
