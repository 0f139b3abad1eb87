"""What a client sees of a request: chunks in stored order, then `end` or `error`. The same for SSE and WebSocket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from msgspec import Struct

from broker.chunks import RequestChunks, StoredChunk
from broker.connection import Broker
from broker.errors import RequestEnded, UploadGone
from broker.facts import Facts
from cornstalk.graph import State
from cornstalk.messages import Error, Finish
from gateway.answers import read_state, stream_refs, without_streams
from gateway.requests import Run
from gateway.streams import OCTETS, MediaTypes
from gateway.values import Values

PING_EVERY: Final = 15.0
"""Seconds of silence after which a client is told that the connection lives."""


class Event(Struct, frozen=True):
    """One event. `seq` is the sequence in CHUNKS by which a client resumes; 0 for `end`, `error` and `ping`."""

    kind: str  # chunk | end | error | ping
    seq: int = 0
    data: dict[str, Any] = {}


Source = tuple[str, str]
"""Node token and output."""


async def events(
    broker: Broker, facts: Facts, run: Run | Finish, request: str, media: MediaTypes, after: int
) -> AsyncIterator[Event]:
    """Everything after sequence `after`, stored or live, each piece once, to the request's end.

    Ending the iteration early leaves the request as it is. The chunks before `after` are read again, for what of a
    re-run output is new depends on what was told before. What has been purged is no silent gap: the last event is an
    `error` then.
    """
    async with RequestChunks(broker, request) as chunks:
        if isinstance(run, Finish):
            chunks.finish()
        else:
            run.task.add_done_callback(lambda _: chunks.finish())
            while not (run.driver.head.done() or run.task.done()):
                await asyncio.wait((run.driver.head, run.task), timeout=PING_EVERY, return_when="FIRST_COMPLETED")
                if not (run.driver.head.done() or run.task.done()):
                    yield Event("ping")
        told = {source: _Told(source, paths, media(paths[0])) for source, paths in (await _sources(run)).items()}
        while told:
            try:
                stored = await chunks.next(PING_EVERY)
            except TimeoutError:
                yield Event("ping")
                continue
            if stored is None:
                break
            output = told.get((stored.node, stored.output))
            if output is not None and (event := output.take(stored)) is not None and stored.seq > after:
                yield event
    finish = run if isinstance(run, Finish) else await run.finished()
    try:
        if finish.status == "done" and not _whole(run, finish, told):
            state = await read_state(facts, request)
            _check_whole(state, finish, told)
        yield await last_event(Values(broker, request), request, finish)
    except (RequestEnded, UploadGone) as gone:
        error = Error(code="gone", message=f"the request ended well, but what it answered was purged: {gone}")
        yield Event("error", data={"request": request, "status": finish.status, "error": error})


class _Told:
    """One output, the source of one stream field or several: how much of it was told.

    A re-run of its node says the same again before it goes on.
    """

    def __init__(self, source: Source, paths: list[str], media_type: str) -> None:
        node, output = source
        more = {"fields": paths} if len(paths) > 1 else {}
        self._fields: dict[str, Any] = {"field": paths[0], **more, "node": node, "output": output}
        self._media_type = media_type
        self._told = 0  # characters, bytes or members
        self._gen = self._at = 0
        self.pieces: dict[int, int] = {}  # read, by generation

    def take(self, stored: StoredChunk) -> Event | None:
        """What is new in a chunk, if anything is."""
        if stored.chunk.takeover:
            return None
        self.pieces[stored.gen] = stored.chunk.n + 1
        if stored.gen < self._gen:
            return None
        if stored.gen > self._gen:
            self._gen, self._at = stored.gen, 0
        payload = stored.chunk.payload
        new = payload[max(0, self._told - self._at) :]
        self._at += len(payload)
        self._told = max(self._told, self._at)
        if not new:
            return None
        data = {**self._fields, "n": stored.chunk.n, "data": new}
        if media_type := self._media_type or (OCTETS if isinstance(new, bytes) else ""):
            data["media_type"] = media_type
        return Event("chunk", stored.seq, data)


async def _sources(run: Run | Finish) -> dict[Source, list[str]]:
    """Where the stream fields of a response come from, and their paths: as it begins, or as it is stored."""
    found: dict[Source, list[str]] = {}
    if isinstance(run, Run) and run.driver.head.done() and not run.driver.head.cancelled():
        for path, source in run.driver.head.result().streams.items():
            found.setdefault(source, []).append(path)
        return found
    finish = run if isinstance(run, Finish) else await run.finished()
    for path, ref in stream_refs(finish.response):
        found.setdefault((ref.node, ref.output), []).append(path)
    return found


def _check_whole(state: State, finish: Finish, told: Mapping[Source, _Told]) -> None:
    """Raises RequestEnded unless every piece of every stream field was read."""
    for path, ref in stream_refs(finish.response):
        end, field = state.ends.get((ref.node, ref.gen)), told.get((ref.node, ref.output))
        if end is None or field is None or field.pieces.get(ref.gen, 0) < int(end.outputs[ref.output]):
            raise RequestEnded(f"chunks of {path} are missing")


def _whole(run: Run | Finish, finish: Finish, told: Mapping[Source, _Told]) -> bool:
    """Whether every piece was read, as far as is known here."""
    if isinstance(run, Finish):
        return not any(stream_refs(finish.response))
    try:
        _check_whole(run.following.state, finish, told)
    except RequestEnded:
        return False
    return True


async def last_event(values: Values, request: str, finish: Finish) -> Event:
    """`end` with the response's plain fields, or `error`. Raises UploadGone."""
    if finish.status != "done":
        error = finish.error or Error(code=finish.status, message=f"the request ended {finish.status}")
        return Event("error", data={"request": request, "status": finish.status, "error": error})
    streams = {path: {"node": ref.node, "output": ref.output} for path, ref in stream_refs(finish.response)}
    response = await values.loaded(without_streams(finish.response))
    return Event(
        "end",
        data={"request": request, "status": "done", "response": response, "streams": streams, "times": finish.times},
    )
