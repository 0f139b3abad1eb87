"""Stream inputs: pieces of a stream that another worker writes, or wrote, in stored order."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from broker.chunks import ChunkReader
from broker.connection import Broker, Subscription
from broker.errors import BrokerError
from broker.facts import Facts, Stored
from broker.subjects import chunk as chunk_subject
from broker.subjects import end as end_subject
from broker.subjects import seen
from components.engine import Piece
from cornstalk.errors import EngineError
from cornstalk.messages import End, Extension, StreamRef, WorkItem, decode, extensions
from cornstalk.traces import where

log = logging.getLogger(__name__)

LOOK_EVERY: Final = 1.0
"""Seconds between looks for the producer's End; the republished message is only a wake-up."""


def reads_streams(item: WorkItem) -> bool:
    """An item that may wait for another one, and may have given its slot up for it once."""
    return any(isinstance(extension, StreamRef) for extension in extensions(item.inputs))


class ProducerLost(Exception):
    """Raised to a reader whose producer ended `lost`: the reader ends lost as well, and both run again."""

    def __init__(self, node: str, gen: int) -> None:
        super().__init__(f"the producer of the stream, {node} generation {gen}, was lost")
        self.node, self.gen = node, gen


class Stalled(Exception):
    """Raised to a reader whose slot somebody else needs, maybe its own producer: it starts again at the next piece."""

    def __init__(self, stream: StreamOf) -> None:
        super().__init__("no piece came, and the slot is needed")
        self.stream = stream


class WholeStream:
    """A stream input whose value is known: one piece, or none if it is empty."""

    def __init__(self, value: Piece) -> None:
        self._value = value

    async def __aiter__(self) -> AsyncIterator[Piece]:
        if self._value:
            yield self._value


class StreamOf:
    """A running or finished stream of another node, to its producer's End. Holds no state that a crash could lose.

    Takeovers by a new attempt of the producer are not seen here: it goes on after the stored prefix.
    """

    def __init__(self, broker: Broker, facts: Facts, ref: StreamRef, after: int = 0) -> None:
        self._broker, self._facts, self._ref = broker, facts, ref
        self._last = after  # sequence in CHUNKS of the piece before
        self._end_subject = end_subject(ref.request, ref.node, ref.gen)
        self._reader = ChunkReader(broker, chunk_subject(ref.request, ref.node, ref.gen, ref.output), after=after)
        self._woken = asyncio.Event()
        self._hint: Subscription | None = None
        self._look: asyncio.Task[None] | None = None
        self._error: Exception | None = None
        self._waiting_since: float | None = None  # monotonic; while somebody waits for the next piece

    async def __aenter__(self) -> StreamOf:
        self._hint = await self._broker.subscribe_core(seen(self._end_subject), self._wake)
        self._look = asyncio.create_task(self._find_end())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._look is not None:
            self._look.cancel()
            with suppress(asyncio.CancelledError):
                await self._look
        if self._hint is not None:
            await self._hint.close()
        await self._reader.close()

    async def __aiter__(self) -> AsyncIterator[Piece]:
        self._waiting_since = time.monotonic()
        try:
            async for stored in self._reader:
                self._last = stored.seq
                if not stored.chunk.takeover:
                    self._waiting_since = None
                    yield stored.chunk.payload
                    self._waiting_since = time.monotonic()
        finally:
            self._waiting_since = None
        if self._error is not None:
            raise self._error

    @property
    def waited(self) -> float:
        """Seconds for which the next piece is waited for; 0.0 if nobody waits."""
        return 0.0 if self._waiting_since is None else time.monotonic() - self._waiting_since

    async def give_up(self) -> None:
        """Who waits for the next piece gets Stalled instead."""
        self._error = Stalled(self)
        await self._reader.close()

    async def next_piece(self) -> None:
        """Returns when a piece follows the last one that was read here, or the stream has ended, however."""
        with suppress(EngineError, ProducerLost, BrokerError):  # who reads it next is told
            async with StreamOf(self._broker, self._facts, self._ref, self._last) as rest:
                async for _ in rest:
                    return

    async def whole(self) -> Any:
        """All pieces added up: str, bytes or list; "" if there is none."""
        pieces: list[Any] = [piece async for piece in self]
        if not pieces:
            return ""
        return pieces[0][:0].join(pieces) if isinstance(pieces[0], (str, bytes)) else [x for p in pieces for x in p]

    async def _wake(self, _: object) -> None:
        self._woken.set()

    async def _stored_end(self) -> Stored | None:
        """None also while NATS is away: it is looked for again."""
        try:
            return await self._facts.last(self._end_subject)
        except BrokerError as error:
            log.info("the end of a producer cannot be read: %s", type(error).__name__)
            return None

    async def _find_end(self) -> None:
        """Ends the reader with the producer, also when that cannot be told: who waits is not left waiting."""
        try:
            await self._end_with_producer()
        except Exception as error:
            log.error("a stream has no end that can be read: %s", where(error))
            self._error = EngineError("the end of the stream it reads cannot be read", code="input_failed")
            await self._reader.close()

    async def _end_with_producer(self) -> None:
        while (stored := await self._stored_end()) is None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), LOOK_EVERY)
            self._woken.clear()
        end = decode(End, stored.data)
        if end.outcome == "done":
            await self._reader.set_total(int(end.outputs[self._ref.output]))
            return
        cause = end.error.message if end.error else end.outcome
        self._error = (
            ProducerLost(end.node, end.gen)
            if end.outcome == "lost"
            else EngineError(f"the stream it reads ended early: {cause}", code="input_failed")
        )
        await self._reader.close()


class StreamOfTensors:
    """A stream whose pieces are lists of tensors: read-only arrays, of the shapes and dtypes that its producer gave.

    They stay readable to the end of the item that reads them. Raises ProducerLost for one that is gone.
    """

    def __init__(self, stream: StreamOf, fetch: Callable[[Extension], Awaitable[Any]]) -> None:
        self._stream, self._fetch = stream, fetch

    async def __aiter__(self) -> AsyncIterator[Piece]:
        piece: Any
        async for piece in self._stream:
            yield [await self._fetch(tensor) for tensor in piece]
