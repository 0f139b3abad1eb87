"""Pending values: what stands in for an output that is not known yet, inside one pass.

A pending value's class has just the operators of the declared type, all of them traps. Touching one raises `Suspend`,
which ends the pass; the next pass has the value itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final, NamedTuple, NoReturn, Protocol, TypeVar

from cornstalk.errors import StaleResult

T = TypeVar("T")


class Suspend(BaseException):
    """Unwinds a pass at a graph break. Never leaves `Pass.run`; a swallowed one keeps its composite call dead."""


class Source(NamedTuple):
    """Where a value comes from: an output of a node, or the result of a composite call that is still under way."""

    node: str  # token; a composite call: its path, which ends in "/"
    output: str
    port: Any  # types.Port, or None for a composite call
    call: str  # readable id of the node, or the path

    @property
    def label(self) -> str:
        return f"{self.call}.{self.output}" if self.output else self.call.rstrip("/")

    @property
    def stream(self) -> bool:
        return self.port is not None and self.port.kind == "stream"


class Recorder(Protocol):
    """What tasks and pending values need of the running pass."""

    def call(self, task: Any, inputs: dict[str, Any]) -> Any: ...
    def nested(self, task: Any, request: Any) -> Any: ...
    def suspend(self, source: Source) -> NoReturn: ...
    def await_node(self, token: str) -> None: ...
    def fail(self, error: Exception) -> NoReturn: ...
    def draw(self, purpose: str) -> bytes: ...
    @property
    def accepted_at(self) -> float: ...


current: ContextVar[Recorder | None] = ContextVar("cornstalk_pass", default=None)

# Operators that other objects or conversions try on a value, whether or not its type has them.
_CONVERSIONS: Final = frozenset(
    (
        *("int", "float", "complex", "bool", "str", "bytes", "repr", "format", "fspath", "array", "dir", "sizeof"),
        *("reduce", "reduce_ex", "eq", "ne", "radd", "rmul", "rmod", "rsub", "rtruediv", "ror", "rand"),
    )
)
# What the pending class defines itself, or what no operator reaches.
_OWN: Final = frozenset(
    (
        *("new", "init", "del", "class", "getattribute", "getattr", "setattr", "delattr", "hash", "copy", "deepcopy"),
        *("init_subclass", "subclasshook", "class_getitem", "doc", "module", "dict", "weakref", "slots", "annotate"),
        *("annotate_func", "getnewargs", "getnewargs_ex", "getstate", "setstate"),
    )
)
_by_kind: dict[type, type] = {}
PENDING: Final[set[type]] = set()
"""All pending classes: `type(value) in PENDING` is the fast form of `is_pending`."""


def is_pending(value: Any) -> bool:
    return type(value) in PENDING


def source_of(value: Any) -> Source:
    """Where a pending value comes from."""
    source: Source = value._cs_source
    return source


def run_of(value: Any) -> Recorder:
    """The pass that handed out a pending value."""
    run: Recorder = value._cs_run
    return run


def wait(value: T) -> T:
    """The value itself: suspends the pass if it is not known yet. The explicit form of a touch.

    Of a `Tensor` it waits until the call that makes it has ended well. Raises StaleResult for a value that was kept
    from another pass or request.
    """
    if is_pending(value):
        if current.get() is not run_of(value):
            stale(source_of(value))
        run_of(value).suspend(source_of(value))
    waiting: Callable[[], None] | None = getattr(type(value), "_cs_wait", None)
    if waiting is not None:
        waiting(value)  # type: ignore[call-arg]
    return value


def stale(source: Source) -> NoReturn:
    """Ends the request that uses a result of another pass or request."""
    error = StaleResult(f"the result {source.label} was kept outside its pass (a cache, a global, another thread?)")
    if run := current.get():
        run.fail(error)
    raise error


def make_pending(cls: Any, source: Source, run: Recorder) -> Any:
    value = object.__new__(cls)
    cls._cs_source.__set__(value, source)
    cls._cs_run.__set__(value, run)
    return value


def _touch(self: Any, *_: Any, **__: Any) -> Any:
    return wait(self)


def _show(self: Any) -> Any:
    return f"<{source_of(self).label}, not known yet>" if current.get() is None else wait(self)


def _same(self: Any, *_: Any) -> Any:
    return self


def _operators(kind: type) -> set[str]:
    dunders = (n for n in dir(kind) if n.startswith("__") and n.endswith("__") and not n.startswith("__pydantic"))
    return {n[2:-2] for n in dunders if callable(inspect.getattr_static(kind, n))} | _CONVERSIONS


def pending_class(kind: type) -> type:
    """A class that traps every operator of `kind` and looks like it to `isinstance` and `match`."""
    known = _by_kind.get(kind)
    if known is not None:
        return known

    def attribute(self: Any, name: str) -> Any:
        if hasattr(kind, name) or name in getattr(kind, "model_fields", ()):
            return wait(self)
        raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")

    body: dict[str, Any] = {f"__{n}__": _touch for n in _operators(kind) - _OWN}
    body |= {
        "__slots__": ("_cs_run", "_cs_source"),
        "__repr__": _show,
        "__getattr__": attribute,
        "__class__": property(lambda self: kind),
        "__setattr__": _touch,
        "__delattr__": _touch,
        "__hash__": _touch if kind.__hash__ is not None else None,
        "__copy__": _same,
        "__deepcopy__": _same,
    }
    cls = _by_kind[kind] = type(f"Pending[{kind.__name__}]", (), body)
    PENDING.add(cls)
    if issubclass(kind, Sequence) and kind not in (str, bytes):
        Sequence.register(cls)  # `match` looks at the abc, not at __class__
    if issubclass(kind, Mapping):
        Mapping.register(cls)
    return cls
