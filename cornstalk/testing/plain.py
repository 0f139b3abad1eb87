"""A request as ordinary Python: calling a task runs its fake engine at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from msgspec.structs import replace

from cornstalk.app import App
from cornstalk.arguments import Sent
from cornstalk.messages import Edge, Extension, Node, Upload, decode_value, encode, substitute
from cornstalk.record import Pass, Result
from cornstalk.response import Head, stream_fields
from cornstalk.task import CompositeTask, UnitTask
from cornstalk.testing.driver import ACCEPTED_AT
from cornstalk.testing.engines import (
    Engines,
    Fakes,
    Given,
    bytes_of,
    checked,
    failure_of,
    given_by,
    one_piece,
    whole,
)
from cornstalk.testing.loop import run_loop
from cornstalk.testing.served import Answering
from cornstalk.testing.store import REQUEST, Store
from cornstalk.testing.subject import Subject, subject
from cornstalk.values import check_piece


def run_plain(task: CompositeTask | App, request: Any, engines: Engines) -> Any:
    """The response, from one run of `invoke` in which every result is the value itself: a breakpoint stops once.

    An app's `serve` runs once, too, as ordinary asyncio; each composite in it answers as soon as it is awaited, and its
    Stream fields are whole. Raises what `invoke` or `serve` raises; TaskError at the call of an engine that raised.
    """
    return PlainRun(engines).response(subject(task, request))


class PlainRun:
    """One request as ordinary Python, and what its calls made."""

    def __init__(self, engines: Engines) -> None:
        self.fakes, self.store = Fakes(engines), Store()
        self.made: list[Node] = []
        self.results: dict[str, Result] = {}

    def response(self, subject: Subject) -> Any:
        """Raises what ends the request."""
        if subject.served is not None:
            return run_loop(PlainServed(subject.served, subject.request, self).answer)
        return self.invoke(subject.task, subject.request).response

    def invoke(self, task: CompositeTask, request: Any, path: str = "") -> Head:
        """One composite call, to its end."""
        run = Plain(self, path)
        outcome = run.run(task, request)
        if outcome.error is not None:
            raise outcome.error
        return Head(outcome.value, stream_fields(outcome.value, run))


class Plain(Pass):
    """A pass in which each call is known as soon as it is recorded."""

    def __init__(self, whole: PlainRun, path: str = "") -> None:
        super().__init__([], whole.results, request_id=REQUEST, accepted_at=ACCEPTED_AT, path=path)
        self._whole = whole

    def _record(self, key: str, task: UnitTask, inputs: dict[str, Any], sent: Sent) -> Node:
        node = super()._record(key, task, inputs, sent)
        self._whole.made.append(replace(node, inputs=sent.plain))
        known = self._whole.results
        seq = len(known) + 1
        try:
            outputs = self._outputs(node, task, sent.plain)
        except AssertionError as error:
            self._whole.store.mistake(error)
            self.fail(error)
        except Exception as error:
            known[node.token] = Result(seq, error=failure_of(error, node))
        else:
            known[node.token] = Result(seq, decode_value(encode(outputs)))
        return node

    def _outputs(self, node: Node, task: UnitTask, sent: dict[str, Any]) -> dict[str, Any]:
        result = self._whole.fakes.call(task, self._inputs(task, sent))
        given = _drained(task, result) if hasattr(result, "__aiter__") else given_by(task, result)
        outputs = dict(given.values)
        for name, port in task.outputs.items():
            if port.tensors:
                self._whole.store.put_tensor((node.token, name), whole(port, given.streams.get(name, [])))
            elif port.kind == "stream":
                pieces = self._whole.store.pieces[node.token, name] = given.streams.get(name, [])
                outputs[name] = whole(port, pieces)
            elif port.kind == "tensor":
                outputs[name] = self._whole.store.put_tensor((node.token, name), given.tensors[name])
        return outputs

    def _inputs(self, task: UnitTask, sent: dict[str, Any]) -> dict[str, Any]:
        pieces = self._whole.fakes.takes_pieces(task)
        inputs = {name: substitute(value, self._value) for name, value in sent.items()}
        return {n: one_piece(v) if pieces and task.inputs[n].kind == "stream" else v for n, v in inputs.items()}

    def _value(self, extension: Extension) -> Any:
        if isinstance(extension, Upload):
            return bytes_of(extension)
        assert isinstance(extension, Edge)
        output = (extension.node, extension.output)
        if output in self._whole.store.tensors:
            return self._whole.store.tensors[output]
        return (self._whole.results[extension.node].outputs or {})[extension.output]


class PlainServed(Answering):
    """One run of `serve` whose composites have answered, whole, by the time that they are awaited."""

    def __init__(self, app: App, request: Any, whole: PlainRun) -> None:
        super().__init__(app, request, whole.store)
        self._run = whole

    def part(self, task: CompositeTask, request: Any, path: str) -> _PlainPart:
        return _PlainPart(lambda: self._run.invoke(task, request, path))

    def call_id(self, node: str) -> str:
        return next(n.id for n in self._run.made if n.token == node)

    async def pieces(self, node: str, output: str) -> AsyncIterator[Any]:
        for piece in self._run.store.pieces[node, output]:
            yield piece

    async def whole(self, node: str, output: str) -> Any:
        return (self._run.results[node].outputs or {})[output]


class _PlainPart:
    """A composite call that is over at once."""

    def __init__(self, call: Callable[[], Head]) -> None:
        self._call = call
        self.head: asyncio.Future[Head] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        self.head.set_result(self._call())


def _drained(task: UnitTask, result: AsyncIterator[Any]) -> Given:
    """All that an async engine yields, without an event loop: nothing that it may await takes time."""

    async def collect() -> Given:
        given = Given()
        async for name, piece in result:
            kind = task.outputs[name].kind if name in task.outputs else "value"
            if kind == "stream":
                given.streams.setdefault(name, []).append(check_piece(task, name, piece))
            else:
                (given.tensors if kind == "tensor" else given.values)[name] = piece
        return checked(task, given)

    work = collect()
    try:
        while work.send(None) is None:
            pass
    except StopIteration as end:
        given: Given = end.value
        return given
    work.close()
    raise AssertionError("an engine of a plain run awaits nothing but its inputs: no sleep, no lock, no I/O")
