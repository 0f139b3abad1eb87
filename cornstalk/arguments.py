"""Arguments of calls: snapshots in which results are references, checked against the declared types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from cornstalk.handle import Out, misuse
from cornstalk.messages import Edge, Extension, encode, substitute
from cornstalk.pending import PENDING, Source, run_of, source_of, stale
from cornstalk.types import Port, Tensor
from cornstalk.values import LONG, misfit, no_reference, wire

if TYPE_CHECKING:
    from cornstalk.record import Pass, Result
    from cornstalk.task import UnitTask


class Arguments:
    """What one pass knows of where its values came from."""

    def __init__(self, run: Pass) -> None:
        self._run = run
        self.origin: dict[int, tuple[Source, Any]] = {}  # id of a known value -> its output, and the value kept alive

    def remember(self, value: Any, source: Source) -> None:
        """Notes which output a known value is, so that passed on it stays an edge: the bytes do not travel again."""
        if source.stream or (type(value) in (str, bytes) and len(value) >= LONG):
            self.origin[id(value)] = (source, value)

    def snapshot(self, task: UnitTask, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """All inputs of a call in msgpack form, in declared order. Raises TypeError; Suspend for what has no node."""
        sent: dict[str, Any] = {}
        given = 0
        for name, port in task.inputs.items():
            if name in inputs:
                given += 1
                sent[name] = self._one(port, inputs[name])
            elif port.required:
                raise TypeError(f"{type(task).__name__}: input {name!r} is missing")
            else:
                sent[name] = port.default
        if given != len(inputs):
            unknown = next(n for n in inputs if n not in task.inputs)
            raise TypeError(f"{type(task).__name__} has no input {unknown!r}; it takes {', '.join(task.inputs)}")
        return sent

    def check(self, task: UnitTask, inputs: Mapping[str, Any], sent: dict[str, Any]) -> None:
        """Raises TypeError that names the input which is not of its declared type."""
        for name, value in inputs.items():
            port = task.inputs[name]
            if type(value) is port.exact:
                continue
            if why := misfit(port, value, sent[name], _holds_pending(value)):
                raise TypeError(f"{type(task).__name__}: {name}: {why}")

    def _one(self, port: Port, value: Any) -> Any:
        kind = type(value)
        if kind is str or kind is bytes or kind in PENDING:
            return self._refer(value, port.kind == "stream")
        return wire(value, self._refer)

    def _refer(self, value: Any, stream: bool = False) -> Any:
        kind = type(value)
        if kind is Tensor:
            value.check()
            return value.edge
        if kind in PENDING:
            return self._refer_pending(value, stream)
        if kind is Out:
            misuse(value)
        if kind is not str and kind is not bytes:
            return no_reference(value)
        known = self.origin.get(id(value)) if len(value) >= LONG else None
        return value if known is None else Edge(known[0].node, known[0].output, stream and known[0].stream)

    def _refer_pending(self, value: Any, stream: bool) -> Edge:
        source = source_of(value)
        if run_of(value) is not self._run:
            stale(source)
        if source.node in self._run.waits:
            self._run.suspend(source)  # the result of a composite call that does not exist yet: nothing to point at
        return Edge(source.node, source.output, stream and source.stream)


def _holds_pending(value: Any) -> bool:
    kind = type(value)
    if kind in PENDING:
        return True
    if kind is dict:
        return any(map(_holds_pending, value.values()))
    if kind in (list, tuple):
        return any(map(_holds_pending, value))
    return isinstance(value, BaseModel) and any(map(_holds_pending, value.__dict__.values()))


def resolved(inputs: dict[str, Any], results: Mapping[str, Result]) -> bytes:
    """Inputs with every known reference replaced by its value: equal means that the node got just that."""

    def value_of(extension: Extension) -> Any:
        if not isinstance(extension, Edge):
            return extension
        result = results.get(extension.node)
        known = (result.outputs or {}).get(extension.output, extension) if result is not None else extension
        return extension if isinstance(known, Extension) else known

    return encode(substitute(inputs, value_of))


def shown(inputs: dict[str, Any], labels: Mapping[str, str]) -> str:
    """Inputs for an error message, at most 120 characters. `labels`: token -> readable id."""
    named = substitute(
        inputs, lambda e: _Label(f"<{labels.get(e.node, e.node)}.{e.output}>" if type(e) is Edge else repr(e))
    )
    text = ", ".join(f"{k}={v!r}" for k, v in named.items())
    return text if len(text) < 120 else text[:117] + "..."


class _Label(str):
    __slots__ = ()
    __repr__ = str.__str__
