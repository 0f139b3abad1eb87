"""Arguments of calls: snapshots in which results are references, checked against the declared types."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel

from cornstalk.errors import BadInput
from cornstalk.handle import Out, misuse
from cornstalk.large import LARGE, Marked, Spooled, is_mark, mark_of, without_large
from cornstalk.messages import Edge, Extension, Upload, encode, extensions, substitute
from cornstalk.pending import PENDING, Source, run_of, source_of, stale
from cornstalk.types import Port, Tensor, Tensors
from cornstalk.values import LONG, misfit, no_reference, out_of_range, wire

if TYPE_CHECKING:
    from cornstalk.record import Pass, Result
    from cornstalk.task import UnitTask


class Sent(NamedTuple):
    """All inputs of a call in msgpack form."""

    plain: dict[str, Any]
    stored: dict[str, Any]  # with marks for large values
    data: bytes  # `stored` encoded
    large: Spooled


class Arguments:
    """What one pass knows of where its values came from."""

    def __init__(self, run: Pass) -> None:
        self._run = weakref.ref(run)  # which has this: each pass would be left to the cycle collector
        self.origin: dict[int, tuple[Source, Any]] = {}  # id of a known value -> its output, and the value kept alive
        self._marked: Marked = {}

    def remember(self, value: Any, source: Source) -> None:
        """Notes which output a known value is, so that passed on it stays an edge: the bytes do not travel again."""
        if source.stream or (type(value) in (str, bytes) and len(value) >= LONG):
            self.origin[id(value)] = (source, value)

    def send(self, name: str, task: UnitTask, inputs: Mapping[str, Any]) -> Sent:
        """The inputs of a call of the task that is called `name`. Raises as `snapshot`."""
        plain = self.snapshot(task, inputs)
        try:
            data = encode(plain)
        except (ValueError, OverflowError) as error:  # a lone surrogate
            raise TypeError(f"{name}: an input cannot travel: {error}") from error
        if len(data) < LARGE:
            return Sent(plain, plain, data, {})
        large: Spooled = {}
        stored = without_large(plain, large, self._marked)
        return Sent(plain, stored, encode(stored), large)

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
        """Raises TypeError that names the input which is not of its declared type, BadInput for one out of range."""
        for name, value in inputs.items():
            port = task.inputs[name]
            if type(value) is port.exact:
                continue
            pending = _holds_pending(value)
            if why := misfit(port, value, sent[name], pending):
                if not pending and (limit := out_of_range(port, value)):
                    raise BadInput(limit, name)
                raise TypeError(f"{type(task).__name__}: {name}: {why}")

    def _one(self, port: Port, value: Any) -> Any:
        kind = type(value)
        if kind is str or kind is bytes or kind in PENDING:
            return self._refer(value, port.kind == "stream")
        return wire(value, self._refer)

    def _refer(self, value: Any, stream: bool = False) -> Any:
        kind = type(value)
        if kind is Tensor or kind is Tensors:
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
        source, run = source_of(value), run_of(value)
        if run is not self._run():
            stale(source)
        if source.node in run.waits:
            run.suspend(source)  # the result of a composite call that does not exist yet: nothing to point at
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


def agree(logged: Any, now: Any, results: Mapping[str, Result]) -> bool:
    """Whether a logged input is what is sent now: a result and the reference to it are the same, and so are a large
    value and its mark.
    """
    logged, now = _known(logged, results), _known(now, results)
    if isinstance(logged, Upload) and is_mark(logged):
        plain = substitute(now, lambda e: _known(e, results))
        return plain == logged or (not extensions(plain) and mark_of(plain)[0] == logged)
    if isinstance(logged, dict) and isinstance(now, dict):
        same_keys = encode(list(logged)) == encode(list(now))
        return same_keys and all(agree(logged[key], now[key], results) for key in logged)
    if isinstance(logged, (list, tuple)) and isinstance(now, (list, tuple)):
        return len(logged) == len(now) and all(agree(a, b, results) for a, b in zip(logged, now, strict=True))
    return encode(logged) == encode(now)


def _known(value: Any, results: Mapping[str, Result]) -> Any:
    """A reference to a known value replaced by the value; anything else as it is."""
    if not isinstance(value, Edge):
        return value
    result = results.get(value.node)
    known = (result.outputs or {}).get(value.output, value) if result is not None else value
    return value if isinstance(known, Extension) else known


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
