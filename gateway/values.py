"""The values of one request that stand beside its facts: streams in CHUNKS, large values in the spool."""

from __future__ import annotations

import time
from typing import Any, Final

from broker.chunks import ChunkReader
from broker.connection import Broker
from broker.errors import ReadTimeout
from broker.lifetimes import fact_ttl
from broker.subjects import chunk
from broker.uploads import Spool
from cornstalk.large import Spooled, marks, value_of, with_large
from cornstalk.messages import End, StreamRef, Upload

READ_WAIT: Final = 20.0
"""Seconds that reading a large value of a request that has ended may take."""
_TRY: Final = 5.0


class Values:
    """Reads each value once and keeps it. A cache of stored data; a crash loses nothing."""

    def __init__(self, broker: Broker, request: str, deadline: float = 0.0) -> None:
        """`deadline` of the request in Unix seconds: reads are repeated through an outage until then."""
        self._broker, self._request, self._deadline = broker, request, deadline
        self._spool = Spool(broker)
        self._streams: dict[tuple[str, int, str], Any] = {}
        self._large: dict[Upload, Any] = {}

    async def stream(self, end: End, output: str, empty: Any = "") -> Any:
        """The whole of a stream output of a node that ended well; `empty` if it had no piece.

        Raises RequestEnded if it was purged.
        """
        key = (end.node, end.gen, output)
        if key not in self._streams:
            value = await self._whole(StreamRef(self._request, *key), int(end.outputs[output]))
            self._streams[key] = empty if value is None else value
        return self._streams[key]

    async def loaded(self, value: Any) -> Any:
        """A stored value with its large parts. Raises UploadGone if they have expired, ReadTimeout."""
        named = marks(value)
        for mark in named:
            if mark not in self._large:
                self._large[mark] = value_of(mark, await self._read(mark))
        return with_large(value, self._large) if named else value

    async def store(self, large: Spooled) -> None:
        """Spools large values before the message that names them is stored; they live as long as it."""
        for mark, data in large.items():
            await self._spool.put(data, mark.media_type, ttl=fact_ttl(self._deadline), deadline=self._until())

    def _until(self) -> float:
        return max(self._deadline, time.time() + READ_WAIT)

    async def _read(self, mark: Upload) -> bytes:
        until = self._until()
        while True:
            try:
                return await self._spool.get(mark, timeout=_TRY)
            except ReadTimeout:
                if time.time() > until:
                    raise

    async def _whole(self, ref: StreamRef, total: int) -> Any:
        pieces: list[Any] = []
        async with ChunkReader(self._broker, chunk(ref.request, ref.node, ref.gen, ref.output)) as reader:
            await reader.set_total(total)
            async for stored in reader:
                if not stored.chunk.takeover:
                    pieces.append(stored.chunk.payload)
        return joined(pieces)


def joined(pieces: list[Any]) -> Any:
    """Pieces added up; None if there is none."""
    if not pieces:
        return None
    if isinstance(pieces[0], (str, bytes)):
        return pieces[0][:0].join(pieces)
    return [x for piece in pieces for x in piece]
