"""A request as ordinary Python: calling a task runs its fake engine at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from msgspec.structs import replace

from cornstalk.app import App
from cornstalk.arguments import Sent
from cornstalk.messages import Edge, Extension, Node, Upload, decode_value, encode, substitute
from cornstalk.record import Pass, Result
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
from cornstalk.testing.store import REQUEST, Store
from cornstalk.values import check_piece


def run_plain(task: CompositeTask | App, request: Any, engines: Engines) -> Any:
    """The response, from one run of `invoke` in which every result is the value itself: a breakpoint stops once.

    Raises what `invoke` raises; TaskError at the call of an engine that raised.
    """
    composite, request = subject(task, request)
    return Plain(engines).response(composite, request)


def subject(task: CompositeTask | App, request: Any) -> tuple[CompositeTask, Any]:
    """The composite under test, and its request: an app takes a dict as a client sends it, too."""
    if not isinstance(task, App):
        return task, request
    if type(task.task).invoke is CompositeTask.invoke:
        raise TypeError(f"app {task.name!r} has a serve: test the composites that it calls")
    return task.task, task.request(request) if isinstance(request, dict) else request


class Plain(Pass):
    """A pass in which each call is known as soon as it is recorded."""

    def __init__(self, engines: Engines) -> None:
        self._known: dict[str, Result] = {}
        super().__init__([], self._known, request_id=REQUEST, accepted_at=ACCEPTED_AT)
        self.made: list[Node] = []
        self._fakes, self._store = Fakes(engines), Store()

    def response(self, task: CompositeTask, request: Any) -> Any:
        outcome = self.run(task, request)
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

    def _record(self, key: str, task: UnitTask, inputs: dict[str, Any], sent: Sent) -> Node:
        node = super()._record(key, task, inputs, sent)
        self.made.append(replace(node, inputs=sent.plain))
        seq = len(self._known) + 1
        try:
            outputs = self._outputs(node, task, sent.plain)
        except AssertionError as error:
            self.fail(error)
        except Exception as error:
            self._known[node.token] = Result(seq, error=failure_of(error, node))
        else:
            self._known[node.token] = Result(seq, decode_value(encode(outputs)))
        return node

    def _outputs(self, node: Node, task: UnitTask, sent: dict[str, Any]) -> dict[str, Any]:
        result = self._fakes.call(task, self._inputs(task, sent))
        given = _drained(task, result) if hasattr(result, "__aiter__") else given_by(task, result)
        outputs = dict(given.values)
        for name, port in task.outputs.items():
            if port.kind == "stream":
                outputs[name] = whole(port, given.streams.get(name, []))
            elif port.kind == "tensor":
                outputs[name] = self._store.put_tensor((node.token, name), given.tensors[name])
        return outputs

    def _inputs(self, task: UnitTask, sent: dict[str, Any]) -> dict[str, Any]:
        pieces = self._fakes.takes_pieces(task)
        inputs = {name: substitute(value, self._value) for name, value in sent.items()}
        return {n: one_piece(v) if pieces and task.inputs[n].kind == "stream" else v for n, v in inputs.items()}

    def _value(self, extension: Extension) -> Any:
        if isinstance(extension, Upload):
            return bytes_of(extension)
        assert isinstance(extension, Edge)
        output = (extension.node, extension.output)
        if output in self._store.tensors:
            return self._store.tensors[output]
        return (self._known[extension.node].outputs or {})[extension.output]


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
