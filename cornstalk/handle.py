"""What a call inside `invoke` returns: a handle with one use, reading an output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from pydantic import ValidationError

from cornstalk.errors import RecordError
from cornstalk.messages import Edge, Node
from cornstalk.pending import Source, current, make_pending, stale
from cornstalk.types import Port, Tensor, Tensors
from cornstalk.values import known_value

if TYPE_CHECKING:
    from cornstalk.record import Pass, Result
    from cornstalk.task import UnitTask


class Called(NamedTuple):
    """One call in one pass."""

    run: Pass
    node: Node
    task: UnitTask
    result: Result | None  # None: not known yet
    read: dict[str, Any]  # two reads give one object


class Out:
    """Reading an output gives its value, or a pending one. Any other use ends the request with the outputs' names."""

    __slots__ = ("_cs",)
    _cs: Called

    def __init__(self, called: Called) -> None:
        object.__setattr__(self, "_cs", called)

    def __getattr__(self, name: str) -> Any:
        called = self._cs
        port = called.task.outputs.get(name)
        if port is None:
            outputs = ", ".join(called.task.outputs)
            raise AttributeError(f"{type(called.task).__name__} has no output {name!r}; it has {outputs}")
        source = Source(called.node.token, name, port, called.node.id)
        if current.get() is not called.run:
            stale(source)
        if name not in called.read:
            called.read[name] = _read(called, port, source)
        return called.read[name]

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError("outputs are read-only")

    def _misused(self, *_: Any) -> NoReturn:
        misuse(self)

    __bool__ = __str__ = __format__ = __iter__ = __len__ = __eq__ = __contains__ = __getitem__ = _misused
    _cs_wait = _misused
    __hash__ = object.__hash__

    def __deepcopy__(self, memo: dict[int, Any]) -> Out:
        return self


def misuse(out: Out) -> NoReturn:
    """Ends the request: the whole result of a call was used, not one of its outputs."""
    called = out._cs
    outputs = ", ".join("." + name for name in called.task.outputs)
    error = TypeError(f"{called.node.id} is the whole result of a call; read one of its outputs: {outputs}")
    called.run.fail(error)


def _read(called: Called, port: Port, source: Source) -> Any:
    if port.kind == "tensor":
        return Tensor(Edge(source.node, source.output, False), called.run)
    if port.tensors:
        return Tensors(Edge(source.node, source.output, True), called.run)
    return value_from(source, called.result, called.run)


def value_from(source: Source, result: Result | None, run: Pass) -> Any:
    """The value of an output as the pass hands it out: what is known, or a pending value."""
    port = source.port
    if result is None:
        if port.pending is None:
            run.suspend(source)
        return make_pending(port.pending, source, run)
    outputs = result.outputs or {}
    if source.output not in outputs:
        run.fail(RecordError(f"the stored result of {source.label} is missing"))
    try:
        value = known_value(port, outputs[source.output])
    except ValidationError as error:
        run.fail(RecordError(f"the stored result of {source.label} is not a {port.type}: {error}"))
    run.arguments.remember(value, source)
    return value
