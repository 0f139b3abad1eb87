"""One run of an app's `async def serve`: its composite calls are driven side by side, each over its part of the log.

They are found by content (task, request, and which equal call it is), not by order, so that `gather` may interleave
them as it likes. When the gateway dies, `serve` runs again elsewhere and its calls answer from the log (rule 26 of
notes/record.md).
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from typing import Any

from pydantic import BaseModel

from broker.chunks import ChunkReader
from broker.connection import Broker
from broker.subjects import chunk
from cornstalk.app import App
from cornstalk.errors import RecordError
from cornstalk.live import LiveRequest, stream_port
from cornstalk.messages import Edge, encode
from cornstalk.pending import Source
from cornstalk.response import fields
from cornstalk.serving import LiveStream, serving
from cornstalk.values import no_reference, wire
from gateway.journal import Journal
from gateway.part import Ended, Head, Part


class Served:
    """Implements cornstalk.serving.Session. Holds nothing that is not stored or made again by running `serve` again."""

    def __init__(self, broker: Broker, journal: Journal, app: App) -> None:
        self._broker, self._journal, self._app = broker, journal, app
        self._names = {id(task): name for name, task in app.task.named_tasks().items()}
        self._calls: Counter[str] = Counter()
        self._jobs: set[asyncio.Task[Head]] = set()
        self._begun: list[asyncio.Task[Head]] = []  # jobs whose response serve has

    async def run(self, request: BaseModel | LiveRequest) -> Head:
        """What `serve` returned, and which output each stream field of it comes from. Raises what `serve` raises."""
        assert self._app.serve is not None
        if isinstance(request, LiveRequest):
            request = request.filled(lambda source: self._stream(source.node, source.output))
        token = serving.set(self)
        try:
            response = await self._app.serve(request)
        finally:
            serving.reset(token)
        if not isinstance(response, self._app.response_model):
            expected, got = self._app.response_model.__name__, type(response).__name__
            raise RecordError(f"serve returned a {got}, not the {expected} that its types promise")
        live = {f.path: f.value for f in fields(response) if isinstance(f.value, LiveStream)}
        return Head(response, {path: (stream.node, stream.output) for path, stream in live.items()})

    async def ended(self) -> None:
        """Every composite call that answered has ended well. Raises the error of one that did not."""
        for part in self._begun:
            await part

    async def call(self, task: Any, request: Any) -> Any:
        """Drives one composite task; its response as soon as that begins. Raises TaskError and what `invoke` raises."""
        path = self._path(task, request)
        part = Part(self._journal, task, self._live_request(request), self._app.name, path)
        job = asyncio.create_task(part.run())
        self._jobs.add(job)
        # when serve gives it up (a time-out, a failed sibling), its work goes on and its answer is not waited for
        await asyncio.wait((part.head, job), return_when=asyncio.FIRST_COMPLETED)
        if not part.head.done():
            await job
        self._begun.append(job)
        return self._live(part.head.result())

    async def close(self) -> None:
        """Ends what is still driven. What failed and was not waited for is nobody's error any more."""
        for job in self._jobs:
            job.cancel()
        await asyncio.gather(*self._jobs, return_exceptions=True)

    def _path(self, task: Any, request: Any) -> str:
        name = self._names.get(id(task))
        if name is None:
            raise RecordError(
                f"{type(task).__name__} is none of the tasks of serve: put it in the app file's globals, or in an "
                "attribute of the object that serve belongs to, so that its workers exist"
            )
        data = encode(wire(request, _by_source))
        content = f"{name}({hashlib.blake2b(data, digest_size=6).hexdigest()})"
        self._calls[content] += 1
        return f"{content}#{self._calls[content] - 1}/"

    def _live_request(self, request: Any) -> Any:
        """A request whose Stream fields are still arriving becomes one whose calls have them as edges."""
        streams = {n: v for n, v in _members(request) if isinstance(v, LiveStream)}
        if not streams:
            return request
        nodes, model = self._journal.state.nodes, type(request)
        sources = {n: Source(s.node, s.output, stream_port(model, n), nodes[s.node].id) for n, s in streams.items()}
        return LiveRequest(lambda values: copy.deepcopy(request).model_copy(update=values), {}, sources)

    def _live(self, head: Head) -> Any:
        """The response with its stream fields open to read."""
        response = head.response
        if not isinstance(response, BaseModel):
            return response
        streams = {path: self._stream(*source) for path, source in head.streams.items() if "." not in path}
        return response.model_copy(update=streams)

    def _stream(self, node: str, output: str) -> LiveStream[Any]:
        return LiveStream(node, output, lambda: self._pieces(node, output), lambda: self._whole(node, output))

    async def _pieces(self, node: str, output: str) -> AsyncIterator[Any]:
        request, gen = self._journal.accepted.request, self._journal.state.gen(node)
        async with ChunkReader(self._broker, chunk(request, node, gen, output)) as reader:
            total = asyncio.create_task(self._total(node, output, reader))
            try:
                async for stored in reader:
                    if not stored.chunk.takeover:
                        yield stored.chunk.payload
                await total
            finally:
                total.cancel()

    async def _total(self, node: str, output: str, reader: ChunkReader) -> None:
        end = await self._end(node)
        await reader.set_total(int(end.outputs[output]))

    async def _whole(self, node: str, output: str) -> Any:
        end = await self._end(node)
        return await self._journal.values.stream(end, output, self._journal.port(node, output).empty)

    async def _end(self, node: str) -> Any:
        """The End of a node that ends well. Raises the cause if it does not, Ended if the request has ended."""
        while (end := self._journal.known().get(node)) is None:
            if self._journal.state.finish is not None:
                raise Ended
            await self._journal.changed()
        if end.outcome != "done":
            await self.ended()  # its composite call says why
            raise Ended
        return end


def _members(request: Any) -> Iterable[tuple[str, Any]]:
    return vars(request).items() if isinstance(request, BaseModel) else ()


def _by_source(value: Any) -> Any:
    return Edge(value.node, value.output, True) if isinstance(value, LiveStream) else no_reference(value)
