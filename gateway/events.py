"""What a client sees of a request: chunks in stored order, then `end` or `error`. The same for SSE and WebSocket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from broker.chunks import RequestChunks, StoredChunk
from broker.connection import Broker
from cornstalk.messages import Error, Finish, StreamRef
from gateway.requests import Run

PING_EVERY: Final = 15.0
"""Seconds of silence after which a client is told that the connection lives."""


class Event(Struct, frozen=True):
    """One event. `seq` is the sequence in CHUNKS by which a client resumes; 0 for `end`, `error` and `ping`."""

    kind: str  # chunk | end | error | ping
    seq: int = 0
    data: dict[str, Any] = {}


async def events(
    broker: Broker, run: Run | Finish, request: str, media: Mapping[str, str], after: int
) -> AsyncIterator[Event]:
    """Everything after sequence `after`, stored or live, each chunk once, to the request's end.

    `media`: media type of each stream field that has one. Ending the iteration early leaves the request as it is.
    """
    async with RequestChunks(broker, request, after) as chunks:
        if isinstance(run, Finish):
            chunks.finish()
            fields = {(ref.node, ref.output): path for path, ref in stream_refs(run.response)}
        else:
            run.task.add_done_callback(lambda _: chunks.finish())
            while not (run.driver.head.done() or run.task.done()):
                await asyncio.wait((run.driver.head, run.task), timeout=PING_EVERY, return_when="FIRST_COMPLETED")
                if not (run.driver.head.done() or run.task.done()):
                    yield Event("ping")
            fields = {source: path for path, source in _head_streams(run).items()}
        gens: dict[tuple[str, str], int] = {}
        while fields:
            try:
                stored = await asyncio.wait_for(anext(chunks), PING_EVERY)
            except TimeoutError:
                yield Event("ping")
                continue
            except StopAsyncIteration:
                break
            source = (stored.node, stored.output)
            if source in fields and not stored.chunk.takeover and gens.setdefault(source, stored.gen) == stored.gen:
                yield _chunk(stored, fields[source], media.get(fields[source], ""))
    yield last_event(request, run if isinstance(run, Finish) else await run.finished())


def last_event(request: str, finish: Finish) -> Event:
    """`end` with the response's plain fields, or `error`."""
    if finish.status != "done":
        error = finish.error or Error(code=finish.status, message=f"the request ended {finish.status}")
        return Event("error", data={"request": request, "status": finish.status, "error": error})
    streams = {path: {"node": ref.node, "output": ref.output} for path, ref in stream_refs(finish.response)}
    response = without_streams(finish.response)
    return Event(
        "end",
        data={"request": request, "status": "done", "response": response, "streams": streams, "times": finish.times},
    )


def stream_refs(response: Any, path: str = "") -> Iterator[tuple[str, StreamRef]]:
    """(field path, reference) of each stream field of a stored response."""
    members: Any = ()
    if isinstance(response, StreamRef):
        yield path, response
    elif isinstance(response, dict):
        members = response.items()
    elif isinstance(response, list):
        members = enumerate(response)
    for name, member in members:
        yield from stream_refs(member, f"{path}.{name}" if path else str(name))


def without_streams(response: Any) -> Any:
    """A stored response without its stream fields: clients have had them piece by piece."""
    if isinstance(response, dict):
        return {k: without_streams(v) for k, v in response.items() if not isinstance(v, StreamRef)}
    if isinstance(response, list):
        return [without_streams(v) for v in response if not isinstance(v, StreamRef)]
    return response


def _head_streams(run: Run) -> dict[str, tuple[str, str]]:
    head = run.driver.head
    return head.result().streams if head.done() and not head.cancelled() else {}


def _chunk(stored: StoredChunk, field: str, media_type: str) -> Event:
    data = {
        "field": field,
        "node": stored.node,
        "output": stored.output,
        "n": stored.chunk.n,
        "data": stored.chunk.payload,
    }
    return Event("chunk", stored.seq, data | ({"media_type": media_type} if media_type else {}))
