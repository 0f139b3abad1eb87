"""Stream outputs in CHUNKS: one writer at a time, fenced; readers that follow them complete and in order."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Coroutine
from functools import lru_cache
from typing import Any, Final, Self

from msgspec import Struct

from broker import subjects
from broker.coalescer import Coalescer
from broker.connection import Broker
from broker.errors import Conflict, RequestEnded, Superseded
from broker.reads import Stored, last_stored_until, pages
from broker.subjects import CHUNKS, EXPECTED_LAST_SUBJECT_SEQUENCE
from broker.tail import Entry, Tail
from cornstalk.messages import Chunk, decode, encode

__all__ = ["ChunkReader", "ChunkWriter", "Coalescer", "RequestChunks", "StoredChunk"]

_AGAIN: Final = 0.02


class StoredChunk(Struct, frozen=True):
    """A chunk and where it stands: `seq` is its sequence in CHUNKS, by which a client resumes."""

    seq: int
    node: str
    gen: int
    output: str
    chunk: Chunk


class ChunkWriter:
    """One stream output of one attempt. Each append names the chunk it stands on, so that no two attempts interleave.

    `prior` holds what earlier attempts stored, without their takeovers: a new one goes on after it. `n` counts all.
    """

    def __init__(self, broker: Broker, subject: str, attempt: str, *, ttl: float, deadline: float) -> None:
        """For `open`."""
        self._broker = broker
        self._subject = subject
        self._attempt = attempt
        self._expires = time.time() + ttl
        self._deadline = deadline
        self._last = 0
        self._one_in_flight = asyncio.Lock()
        self.prior: list[Chunk] = []
        self.n = 0

    @classmethod
    async def open(
        cls, broker: Broker, subject: str, attempt: str, *, ttl: float, deadline: float, fresh: bool = False
    ) -> Self:
        """Reads what is stored, and takes over from another attempt if one has begun.

        `fresh` says that this is a first attempt: nothing is read, and whoever was there all the same is found by the
        first append (Superseded). `ttl` in seconds is the life of the chunks from now on, `deadline` in Unix seconds.
        Raises ReadTimeout, and what `append` raises.
        """
        writer = cls(broker, subject, attempt, ttl=ttl, deadline=deadline)
        if not fresh:
            await writer._take_over(even_nothing=False)
        return writer

    @classmethod
    async def seal(cls, broker: Broker, subject: str, attempt: str, *, ttl: float, deadline: float) -> list[Chunk]:
        """Ends an output of an earlier generation: whoever writes it yet is Superseded. Its chunks, now for good.

        Raises as `open`.
        """
        writer = cls(broker, subject, attempt, ttl=ttl, deadline=deadline)
        await writer._take_over(even_nothing=True)
        return writer.prior

    async def append(self, payload: Any, tokens: tuple[int, ...] = ()) -> int:
        """Stores the next payload (str, bytes, list or Ref) and the tokens it came from; its sequence in CHUNKS.

        One at a time, others wait.

        Raises Superseded when another attempt took over, RequestEnded when the chunks before were purged, and what
        `Broker.publish_stored` raises.
        """
        async with self._one_in_flight:
            seq = await self._store(Chunk(attempt=self._attempt, n=self.n, payload=payload, tokens=tokens))
            self.n += 1
            return seq

    async def _take_over(self, even_nothing: bool) -> None:
        while True:
            last = await self._read_prior()
            if last is None and not even_nothing:
                return
            if last is not None and last.attempt == self._attempt:
                return
            try:
                await self._store(Chunk(attempt=self._attempt, n=self.n, takeover=True))
                return
            except Superseded:
                await asyncio.sleep(_AGAIN)  # the other one is still writing: after its newest chunk then

    async def _read_prior(self) -> Chunk | None:
        chunk = None
        self.prior = []
        async for stored in pages(self._broker, CHUNKS, self._subject):
            chunk = decode(Chunk, stored.data)
            self._last = stored.seq
            if not chunk.takeover:
                self.prior.append(chunk)
        self.n = len(self.prior)
        return chunk

    async def _store(self, chunk: Chunk) -> int:
        data = encode(chunk)
        while True:
            try:
                confirmed = await self._broker.publish_stored(
                    self._subject,
                    data,
                    deadline=self._deadline,
                    headers={EXPECTED_LAST_SUBJECT_SEQUENCE: str(self._last)},
                    ttl=self._expires - time.time(),
                )
                self._last = confirmed.seq
                return confirmed.seq
            except Conflict:
                there = await last_stored_until(self._broker, CHUNKS, self._subject, self._deadline)
                if self._is_stored(data, there):
                    return self._last
            await asyncio.sleep(_AGAIN)

    def _is_stored(self, data: bytes, there: Stored | None) -> bool:
        """Whether the refusal was for our own copy, stored before and not confirmed. Raises if it is for another's."""
        if there is None:
            if self._last:
                raise RequestEnded("the chunks before this one were purged or have expired")
            return False
        if there.seq == self._last:
            return False  # another write was in flight and came to nothing
        if there.data != data:
            raise Superseded("another attempt goes on with this output")
        self._last = there.seq
        return True


class Followed:
    """Chunks of a subject, each once, in stored order, takeovers included.

    `after` is the sequence to resume after. Gap-free across restarts and for a slow reader, whose memory stays bounded.
    Iterate; each step may be cancelled and repeated. Use as a context manager, or call `close`.
    """

    def __init__(self, broker: Broker, subject: str, after: int = 0) -> None:
        self._tail = Tail(broker, CHUNKS, subject, after, _stored_chunk)

    def finish(self) -> None:
        """No more chunks will be stored: the iteration ends after what is stored by now."""
        self._tail.finish()

    async def close(self) -> None:
        """Ends the iteration. Idempotent."""
        await self._tail.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self


class RequestChunks(Followed):
    """Those of all stream outputs of a request."""

    def __init__(self, broker: Broker, request: str, after: int = 0) -> None:
        super().__init__(broker, subjects.chunks_of(request), after)

    async def __anext__(self) -> StoredChunk:
        if (stored := await self.next()) is None:
            raise StopAsyncIteration
        return stored

    def next(self, patience: float = math.inf) -> Coroutine[Any, Any, StoredChunk | None]:
        """The next chunk, None after the last. Raises TimeoutError when none came for about `patience` seconds."""
        return self._tail.next(patience)


class ChunkReader(Followed):
    """Those of one stream output. Ends with the last payload once `set_total` says how many.

    Raises RequestEnded when the total is known and chunks are missing: they were purged or have expired.
    """

    def __init__(self, broker: Broker, subject: str, *, after: int = 0) -> None:
        super().__init__(broker, subject, after)
        self._resumed = after > 0
        self._seen: int | None = None  # payloads up to and with the newest one handed out
        self._total: int | None = None

    async def set_total(self, total: int) -> None:
        """The producer's End is stored and says `total` payloads."""
        self._total = total
        self._tail.finish()

    async def __anext__(self) -> StoredChunk:
        if self._total is not None and (self._seen or 0) >= self._total:
            raise StopAsyncIteration
        found = await self._tail.next()
        if found is None:
            if self._is_short():
                raise RequestEnded("chunks of this output were purged or have expired")
            raise StopAsyncIteration
        if not found.chunk.takeover:
            self._seen = found.chunk.n + 1
        return found

    def _is_short(self) -> bool:
        if self._tail.closed or self._total is None or (self._seen is None and self._resumed):
            return False
        return (self._seen or 0) < self._total


def _stored_chunk(entry: Entry) -> StoredChunk:
    return StoredChunk(entry.seq, *_place(entry.subject), decode(Chunk, entry.data))


@lru_cache(maxsize=4096)
def _place(subject: str) -> tuple[str, int, str]:
    """Node, generation and output of a subject, which stands in one chunk after the other."""
    _, _, node, gen, output = subject.split(".")
    return node, int(gen), output
