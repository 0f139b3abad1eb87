"""One run of an app's `async def serve`: its composite calls are driven side by side, each over its part of the log.

They are found by content (task, request, and which equal call it is), not by order, so that `gather` may interleave
them as it likes. When the gateway dies, `serve` runs again elsewhere and its calls answer from the log (rule 26 of
notes/record.md). Where the log is, and who computes, is for those to say who derive from Serving.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel

from cornstalk.app import App
from cornstalk.errors import RecordError
from cornstalk.live import LiveRequest, stream_port
from cornstalk.messages import Edge, encode
from cornstalk.pending import Source
from cornstalk.response import Head, fields, replaced
from cornstalk.serving import LiveStream, serving
from cornstalk.task import CompositeTask
from cornstalk.values import no_reference, wire

T = TypeVar("T")


class Part(Protocol):
    """One composite task, driven to its value."""

    head: asyncio.Future[Head]
    """Its response once it begins; never if it does not, or cancelled."""

    async def run(self) -> Any:
        """Returns when it has ended well. Raises what ends it."""


class Serving(ABC):
    """Implements cornstalk.serving.Session. Holds nothing that is not stored or made again by running `serve` again."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._names = {id(task): name for name, task in app.task.named_tasks().items()}
        self._calls: Counter[str] = Counter()
        self._jobs: dict[str, asyncio.Task[Any]] = {}  # by the path of the composite call
        self._begun: list[asyncio.Task[Any]] = []  # jobs whose response serve has

    @abstractmethod
    def part(self, task: CompositeTask, request: Any, path: str) -> Part:
        """Drives one composite call. `path`: what the ids of its nodes begin with."""

    @abstractmethod
    def call_id(self, node: str) -> str:
        """The readable id of a node."""

    @abstractmethod
    def pieces(self, node: str, output: str) -> AsyncIterator[Any]:
        """The pieces of a stream output as they come. Raises why its node failed."""

    @abstractmethod
    async def whole(self, node: str, output: str) -> Any:
        """A stream output once it is whole. Raises why its node failed."""

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
        return Head(response, _streams(response))

    async def ended(self) -> None:
        """Every composite call that answered has ended well. Raises the error of one that did not."""
        for job in self._begun:
            await job

    async def until(self, node: str, event: Coroutine[Any, Any, T]) -> T:
        """What comes of `event`. Raises the error of the composite call that made a node, if that comes first."""
        waiting, job = asyncio.ensure_future(event), self._job(node)
        try:
            if job is not None:
                await asyncio.wait((waiting, job), return_when=asyncio.FIRST_COMPLETED)
                if not waiting.done():
                    await job
            return await waiting
        finally:
            waiting.cancel()

    async def failed(self, node: str) -> None:
        """Raises the error of the composite call that made a node, which has failed."""
        if (job := self._job(node)) is not None:
            await job

    def _job(self, node: str) -> asyncio.Task[Any] | None:
        """None for what the client streams in."""
        call = self.call_id(node)
        return next((job for path, job in self._jobs.items() if call.startswith(path)), None)

    async def call(self, task: Any, request: Any) -> Any:
        """Drives one composite task; its response as soon as that begins. Raises TaskError and what `invoke` raises."""
        path, request = self._path(task, request), copy.deepcopy(request)  # as it is now
        part = self.part(task, self._live_request(request), path)
        job = self._jobs[path] = asyncio.create_task(part.run())
        # when serve gives it up (a time-out, a failed sibling), its work goes on and its answer is not waited for
        await asyncio.wait((part.head, job), return_when=asyncio.FIRST_COMPLETED)
        if not part.head.done() or part.head.cancelled():
            await job
        self._begun.append(job)
        head = part.head.result()
        return replaced(head.response, {path: self._stream(*source) for path, source in head.streams.items()})

    async def close(self) -> None:
        """Ends what is still driven. What failed and was not waited for is nobody's error any more."""
        for job in self._jobs.values():
            job.cancel()
        await asyncio.gather(*self._jobs.values(), return_exceptions=True)
        self._jobs.clear()
        self._begun.clear()

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
        model = type(request)
        sources = {n: Source(s.node, s.output, stream_port(model, n), self.call_id(s.node)) for n, s in streams.items()}
        return LiveRequest(lambda values: copy.deepcopy(request).model_copy(update=values), {}, sources)

    def _stream(self, node: str, output: str) -> LiveStream[Any]:
        async def whole() -> Any:
            return copy.deepcopy(await self.whole(node, output))  # a list that serve may change

        return LiveStream(node, output, lambda: self.pieces(node, output), whole)


def _streams(response: BaseModel) -> dict[str, tuple[str, str]]:
    """Field path -> (node token, output) of what still arrives. Raises RecordError where it may not."""
    live = [f for f in fields(response) if isinstance(f.value, LiveStream)]
    for field in live:
        if not field.stream:
            raise RecordError(f"{field.path} of the response is no Stream field: `await` the stream for the whole")
    return {f.path: (f.value.node, f.value.output) for f in live}


def _members(request: Any) -> Iterable[tuple[str, Any]]:
    return vars(request).items() if isinstance(request, BaseModel) else ()


def _by_source(value: Any) -> Any:
    return Edge(value.node, value.output, True) if isinstance(value, LiveStream) else no_reference(value)
