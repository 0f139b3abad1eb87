"""Whole values of stream outputs, added up from the stored chunks."""

from __future__ import annotations

from typing import Any

from broker.chunks import ChunkReader
from broker.connection import Broker
from broker.subjects import chunk
from cornstalk.messages import End, StreamRef


async def whole(broker: Broker, ref: StreamRef, total: int) -> Any:
    """The `total` pieces of a finished stream added up; None if it had none. Raises RequestEnded if purged."""
    pieces: list[Any] = []
    async with ChunkReader(broker, chunk(ref.request, ref.node, ref.gen, ref.output)) as reader:
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


class StreamValues:
    """The streams of one request, each read once. A cache of stored data; a crash loses nothing."""

    def __init__(self, broker: Broker, request: str) -> None:
        self._broker, self._request = broker, request
        self._known: dict[tuple[str, int, str], Any] = {}

    async def whole(self, end: End, output: str, empty: Any) -> Any:
        """The value of a stream output of a node that ended well; `empty` if it had no piece."""
        key = (end.node, end.gen, output)
        if key not in self._known:
            value = await whole(self._broker, StreamRef(self._request, *key), int(end.outputs[output]))
            self._known[key] = empty if value is None else value
        return self._known[key]
