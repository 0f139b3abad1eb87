"""Tasks: UnitTask is one component's typed signature, CompositeTask is plain Python over tasks.

One verb: calling a task. Inside `invoke` a call records a node; inside `async def serve` a composite is awaited.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from functools import cached_property, wraps
from typing import Any, ClassVar, Final, get_type_hints

import msgspec
from pydantic import BaseModel, ConfigDict, ValidationError

from cornstalk.errors import AppError, RecordError, SetupError
from cornstalk.pending import current
from cornstalk.serving import serving
from cornstalk.types import Port, field_type, make_port
from cornstalk.values import misfit, no_reference, wire

_NO_TOKEN: Final = re.compile(r"[^a-z0-9]+")


class UnitTask(BaseModel):
    """A typed signature plus identity. Fields are identity: equal tasks share one component and its workers.

    Subclasses declare `class Out(BaseModel)` and `def __call__(self, *, prompt: str, ...) -> Out`, whose body is
    never run. Raises TypeError, at class creation, for a signature that cannot be one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: ClassVar[str] = "task"
    """First part of the component id: encoder, llm, generator, ..."""
    tuning: ClassVar[frozenset[str]] = frozenset()
    """Fields that are knobs (slots, batch sizes), not identity."""
    cached: ClassVar[bool] = False
    """Whether equal inputs (of one tenant) are computed once: outputs follow from them alone, and none is a stream."""
    inputs: ClassVar[dict[str, Port]] = {}
    outputs: ClassVar[dict[str, Port]] = {}
    defaults: ClassVar[dict[str, Any]] = {}
    """Inputs that a call may leave out, in msgpack form."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        call = cls.__dict__.get("__call__")
        if call is not None:
            _declare(cls, call)

    def __hash__(self) -> int:
        return hash(self.component)  # fields may be dicts

    def identity(self) -> dict[str, Any]:
        """The fields that tell components apart, as JSON values."""
        return self.model_dump(mode="json", exclude=set(self.tuning))

    @property
    def task_path(self) -> str:
        """ "module:Class", by which a worker finds the class."""
        return f"{type(self).__module__}:{type(self).__qualname__}"

    @cached_property
    def component(self) -> str:
        """`<kind>-<slug>-<hash>`, tokens [a-z0-9-]: the name of streams, queues and workers."""
        name = next((v for f in ("model", "name") if isinstance(v := getattr(self, f, None), str) and v), "")
        slug = _slug(name.rpartition("/")[2]) or _slug(type(self).__name__) or "task"
        data = msgspec.json.encode([self.task_path, self.identity()], order="sorted")
        return f"{_slug(self.kind) or 'task'}-{slug}-{short_hash(data, 5)}"


def _slug(text: str) -> str:
    return _NO_TOKEN.sub("-", text.lower()).strip("-")[:24].strip("-")


def short_hash(data: bytes, size: int) -> str:
    """Lower-case base32 of `size` bytes of blake2b."""
    return base64.b32encode(hashlib.blake2b(data, digest_size=size).digest()).decode().rstrip("=").lower()


def _declare(cls: type[UnitTask], call: Any) -> None:
    hints = get_type_hints(call, include_extras=True, localns=dict(vars(cls)))
    parameters = [p for p in inspect.signature(call).parameters.values() if p.name != "self"]
    result = hints.pop("return", None)
    if not (inspect.isclass(result) and issubclass(result, BaseModel)):
        raise TypeError(f"{cls.__name__}.__call__ returns a pydantic model, its outputs: `-> Out`")
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or parameter.name not in hints:
            raise TypeError(f"{cls.__name__}.__call__: input {parameter.name!r} needs a name and a type")
    cls.inputs = {p.name: _input(cls, p, hints[p.name]) for p in parameters}
    cls.outputs = {n: make_port(n, field_type(f)) for n, f in result.model_fields.items()}
    cls.defaults = {n: p.default for n, p in cls.inputs.items() if not p.required}
    if cls.cached and (streams := [n for n, p in cls.outputs.items() if p.kind == "stream"]):
        raise TypeError(f"{cls.__name__}: a task that is cached has no streams, and {streams[0]!r} is one")

    @wraps(call)
    def record(self: UnitTask, *values: Any, **inputs: Any) -> Any:
        run = current.get()
        if run is None:
            raise RuntimeError("unit tasks are called inside the invoke of a composite task")
        if values:
            inputs = _positional(cls, values, inputs)
        return run.call(self, inputs)

    type.__setattr__(cls, "__call__", record)


def _positional(cls: type[UnitTask], values: tuple[Any, ...], inputs: dict[str, Any]) -> dict[str, Any]:
    if len(values) > len(cls.inputs):
        raise TypeError(f"{cls.__name__} takes {len(cls.inputs)} inputs, got {len(values)}")
    given = dict(zip(cls.inputs, values, strict=False))
    if doubled := sorted(given.keys() & inputs.keys()):
        raise TypeError(f"{cls.__name__}: input {doubled[0]!r} is given twice")
    return given | inputs


def _input(cls: type[UnitTask], parameter: inspect.Parameter, hint: Any) -> Port:
    if parameter.default is parameter.empty:
        return make_port(parameter.name, hint)
    sent = wire(parameter.default, no_reference)
    port = make_port(parameter.name, hint, required=False, default=sent)
    if why := misfit(port, parameter.default, sent, pending=False):
        raise TypeError(f"{cls.__name__}: the default of {parameter.name} is wrong: {why}")
    return port


def load_task(path: str, fields: dict[str, Any]) -> UnitTask:
    """The unit task of `task_path` with these fields.

    Raises SetupError when its module is missing here, AppError when the path or the fields are wrong.
    """
    module, _, name = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except ImportError as error:
        raise SetupError(f"cannot import {path}: {error}. Install the package that has it on this machine.") from error
    except (AttributeError, ValueError, TypeError) as error:
        raise AppError(f"{path!r} is not the path of a task (module:Class): {error}") from error
    if not (inspect.isclass(found) and issubclass(found, UnitTask)):
        raise AppError(f"{path} is not a UnitTask")
    try:
        return found(**fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise AppError(f"{path}: field {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


class CompositeTask:
    """Plain Python over tasks. Subtasks are attributes, or stand in lists, tuples and dicts of attributes.

    `invoke` runs several times for one request and must make the same calls given the same results.
    """

    max_calls: ClassVar[int] = 1000
    """Calls of one run of `invoke`; more is TooManyCalls."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if inspect.iscoroutinefunction(cls.invoke) or inspect.isgeneratorfunction(cls.invoke):
            raise TypeError(
                f"{cls.__name__}.invoke must be a plain function: calls are recorded, not awaited or yielded"
            )

    def invoke(self, request: Any, /) -> Any:
        """What this task does with a request."""
        raise NotImplementedError(f"{type(self).__name__} has no invoke")

    def __call__(self, request: Any, /) -> Any:
        run = current.get()
        if run is not None:
            return run.nested(self, request)
        session = serving.get()
        if session is not None:
            return session.call(self, request)
        raise RuntimeError("tasks are called inside invoke, or awaited inside serve")

    def __setattr__(self, name: str, value: Any) -> None:
        if run := current.get():
            run.fail(RecordError(f"invoke must not change its task (self.{name} = ...): it runs many times"))
        object.__setattr__(self, name, value)

    def named_tasks(self) -> dict[str, UnitTask | CompositeTask]:
        """Every task within, by name: `llms[0]`, `eyes['left']`, `topic.small`. The order is that of definition."""
        return dict(_walk(self, "", set()))

    def unit_tasks(self) -> dict[str, UnitTask]:
        """Component id -> task, those of nested composites included."""
        return {t.component: t for t in self.named_tasks().values() if isinstance(t, UnitTask)}


def _walk(task: CompositeTask, prefix: str, within: set[int]) -> Iterator[tuple[str, UnitTask | CompositeTask]]:
    if id(task) in within:
        return
    attributes: dict[str, Any] = {}
    for cls in reversed(type(task).__mro__):
        attributes |= vars(cls)
    for name, value in (attributes | vars(task)).items():
        if not name.startswith("__"):
            yield from _members(f"{prefix}{name}", value, within | {id(task)})


def _members(name: str, value: Any, within: set[int]) -> Iterator[tuple[str, UnitTask | CompositeTask]]:
    if isinstance(value, UnitTask):
        yield name, value
    elif isinstance(value, CompositeTask):
        yield name, value
        yield from _walk(value, f"{name}.", within)
    elif isinstance(value, (list, tuple)):
        for index, member in enumerate(value):
            yield from _members(f"{name}[{index}]", member, within)
    elif isinstance(value, dict):
        for key, member in value.items():
            inner = repr(key).replace("%", "%25").replace("/", "%2F")  # "/" separates composite calls in node ids
            yield from _members(f"{name}[{inner}]", member, within)


def pending_result(invoke: Callable[..., Any]) -> type | None:
    """The pending class of what an `invoke` is annotated to return; None: who calls it waits for it."""
    kept = invoke.__dict__  # it goes with its function: a cache would hold every app that was ever loaded
    if "_pending_result" not in kept:
        hint = get_type_hints(invoke, include_extras=True).get("return")
        kept["_pending_result"] = None if hint is None else make_port("result", hint).pending
    found: type | None = kept["_pending_result"]
    return found
