"""Values on their way into and out of nodes: their msgpack form, and whether they are of the declared type."""

from __future__ import annotations

import copy
import datetime
import decimal
import enum
import inspect
import types
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel, RootModel, ValidationError

from cornstalk.errors import EngineError
from cornstalk.messages import Upload, encode
from cornstalk.pending import PENDING, source_of
from cornstalk.serving import LiveStream
from cornstalk.types import Port, Tensor, Tensors, adapter, bare, pcm_of

if TYPE_CHECKING:
    from cornstalk.task import UnitTask

LONG: Final = 32
"""A known str or bytes of this length or more that came from an output travels as a reference to it."""

_ATOMS: Final = frozenset((float, bool, type(None)))
_NATIVE: Final = (datetime.datetime, datetime.date, datetime.time, datetime.timedelta, uuid.UUID, decimal.Decimal)

_RANGES: Final = frozenset(
    [
        *("greater_than", "greater_than_equal", "less_than", "less_than_equal", "finite_number"),
        *("too_short", "too_long", "string_too_short", "string_too_long"),
    ]
)
"""What pydantic calls the breach of a limit that a type declares."""

Refer = Callable[[Any], Any]


def wire(value: Any, refer: Refer) -> Any:
    """A snapshot of a value as msgpack carries it. Models become dicts, enums their values, sets sorted lists.

    `refer` is asked what stands for a pending value, a Tensor, a str or bytes of `LONG` or more, and anything unknown;
    it raises TypeError for what cannot travel.
    """
    kind = type(value)
    if kind is str or kind is bytes:
        return value if len(value) < LONG else refer(value)
    if kind is int:
        return _int(value)
    if kind in _ATOMS or kind is Upload:
        return value
    if kind is list or kind is tuple:
        return [wire(v, refer) for v in value]
    if kind is dict:
        return {_key(k): wire(v, refer) for k, v in value.items()}
    if kind in PENDING or kind is Tensor or kind is Tensors:
        return refer(value)
    return _rare(value, refer)


def _rare(value: Any, refer: Refer) -> Any:
    match value:
        case RootModel():
            return wire(value.root, refer)
        case BaseModel():
            return {k: wire(v, refer) for k, v in {**value.__dict__, **(value.__pydantic_extra__ or {})}.items()}
        case LiveStream():
            return refer(value)
        case enum.Enum():
            return wire(value.value, refer)
        case int():
            return _int(int(value))
        case float():
            return float(value)
        case str():
            return str.__str__(value)
        case bytes() | bytearray():
            return bytes(value)
        case set() | frozenset():  # their order differs between processes
            return sorted((wire(v, refer) for v in value), key=encode)
        case list() | tuple():
            return wire(list(value), refer)
        case dict():
            return wire(dict(value), refer)
    if isinstance(value, _NATIVE):
        return value
    return refer(value)


def _int(value: int) -> int:
    if not -(2**63) <= value < 2**64:
        raise TypeError("an int between tasks has at most 64 bits")
    return value


def _key(key: Any) -> Any:
    if type(key) in (str, int, bool, float, bytes):
        return key
    if isinstance(key, enum.Enum):
        return _key(key.value)
    if isinstance(key, str):
        return str.__str__(key)
    raise TypeError(f"a dict between tasks has str or int keys, not {type(key).__name__}")


def no_reference(value: Any) -> Any:
    """`refer` where nothing is pending: only plain data may travel."""
    if type(value) in (str, bytes):
        return value
    raise TypeError(f"a {type(value).__name__} cannot travel between tasks")


def known_value(port: Port, raw: Any) -> Any:
    """An output as user code sees it: of the declared type, and a copy that nobody else holds.

    Raises pydantic.ValidationError when what is stored is not of that type.
    """
    if type(raw) is port.exact:
        return raw
    return port.adapter.validate_python(copy.deepcopy(raw), by_name=True)


def type_name(hint: Any) -> str:
    hint = bare(hint)[0]
    return hint.__name__ if inspect.isclass(hint) and not get_args(hint) else str(hint).replace("typing.", "")


def misfit(port: Port, value: Any, sent: Any, pending: bool) -> str | None:
    """Why a value may not be this input, or None. `sent` is its msgpack form; `pending`: it holds pending values."""
    if type(value) is port.exact or (port.tensors and type(value) is Tensors):
        return None
    if pending:
        return None if _fits(port.type, value) else f"expected {type_name(port.type)}, got {_describe(value)}"
    try:
        port.adapter.validate_python(value, strict=True)
        return None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    try:  # a tuple for a list, a dict for a model: fine as long as what the engine gets is the same
        if encode(wire(port.adapter.validate_python(value), _keep)) == encode(wire(value, _keep)):
            return None
    except (ValidationError, TypeError):
        pass
    where = "".join(f"[{part!r}]" for part in first["loc"])
    detail = f" ({where[:60]}: {first['msg']})" if where else ""
    return f"expected {type_name(port.type)}, got {_describe(value)}{detail}"


def out_of_range(port: Port, value: Any) -> str | None:
    """What a value of the right type breaks, or None."""
    try:
        port.adapter.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        if first["type"] in _RANGES:
            return first["msg"][:1].lower() + first["msg"][1:]
    return None


def _keep(value: Any) -> Any:
    return value.edge if type(value) is Tensor else no_reference(value)


def _describe(value: Any) -> str:
    if type(value) in PENDING:
        source = source_of(value)
        return f"{type_name(source.port.type)} ({source.label})" if source.port else source.label
    return type(value).__name__


def _fits(hint: Any, value: Any) -> bool:
    """Whether a value that holds pending ones may be of the type. Pending values are never handed to pydantic."""
    hint = bare(hint)[0]
    kind = type(value)
    if kind in PENDING:
        source = source_of(value)
        return source.port is None or compatible(source.port.type, hint)
    if hint is Any or hint is object:
        return True
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(a, value) for a in args)
    if kind in (list, tuple, dict):
        if not (isinstance(origin or hint, type) and _interchangeable(kind, origin or hint)):
            return False
        if kind is dict:
            return len(args) < 2 or all(_fits(args[1], v) for v in value.values())
        if origin is tuple and Ellipsis not in args:
            return len(args) == len(value) and all(_fits(a, v) for a, v in zip(args, value, strict=True))
        return not args or all(_fits(args[0], v) for v in value)
    if isinstance(value, BaseModel):
        return isinstance(hint, type) and isinstance(value, hint)
    try:
        adapter(hint).validate_python(value)
    except ValidationError:
        return False
    return True


def _interchangeable(kind: type, wanted: type) -> bool:
    sequence = kind in (list, tuple) and wanted in (list, tuple, set, frozenset)
    return sequence or issubclass(kind, wanted)


def compatible(given: Any, wanted: Any) -> bool:
    """Whether every value of type `given` is one of `wanted`, as far as types tell. Different audio rates are not."""
    pcm, needs = pcm_of(given), pcm_of(wanted)
    if pcm and needs and pcm != needs:
        return False
    given, wanted = bare(given)[0], bare(wanted)[0]
    if given == wanted or Any in (given, wanted) or wanted is object:
        return True
    if get_origin(given) in (Union, types.UnionType):
        return all(compatible(g, wanted) for g in get_args(given))
    if get_origin(wanted) in (Union, types.UnionType):
        return any(compatible(given, w) for w in get_args(wanted))
    if get_origin(given) is Literal:
        return all(compatible(type(v), wanted) for v in get_args(given))
    one, other = get_origin(given) or given, get_origin(wanted) or wanted
    if not (inspect.isclass(one) and inspect.isclass(other)):
        return False
    if (one, other) == (int, float):
        return True
    if not issubclass(one, other):
        return False
    ours, theirs = get_args(given), get_args(wanted)
    if not ours or not theirs or issubclass(one, BaseModel) or len(ours) != len(theirs):
        return True
    return all(a is b is Ellipsis or compatible(a, b) for a, b in zip(ours, theirs, strict=True))


def check_outputs(task: UnitTask, outputs: Mapping[str, Any]) -> dict[str, Any]:
    """The value outputs of a node in msgpack form, each of its declared type: what an End carries.

    `outputs` holds the outputs of kind `value`, no others; streams and tensors do not pass here. Raises EngineError
    with code `bad_output` that names the output.
    """
    ports = {n: p for n, p in task.outputs.items() if p.kind == "value"}
    if unknown := outputs.keys() - ports.keys():
        raise _bad(task, f"gave {sorted(unknown)[0]!r}, which is not one of its value outputs ({', '.join(ports)})")
    return {name: _checked(task, port, outputs) for name, port in ports.items()}


def _checked(task: UnitTask, port: Port, outputs: Mapping[str, Any]) -> Any:
    if port.name not in outputs:
        raise _bad(task, f"did not give output {port.name!r}")
    value = outputs[port.name]
    try:
        return wire(value if type(value) is port.exact else port.adapter.validate_python(value), no_reference)
    except (ValidationError, TypeError) as error:
        wanted, got = type_name(port.type), type(value).__name__
        raise _bad(task, f"output {port.name!r}: expected {wanted}, got {got}") from error


def check_piece(task: UnitTask, output: str, piece: Any) -> Any:
    """One piece of a stream output, checked. Raises EngineError with code `bad_output`."""
    port: Port | None = task.outputs.get(output)
    if port is None or port.kind != "stream":
        raise _bad(task, f"has no stream output {output!r}")
    kind = bare(port.type)[0]
    wanted = get_origin(kind) or kind
    if type(piece) is not wanted:
        raise _bad(task, f"output {output!r}: a piece is {wanted.__name__}, got {type(piece).__name__}")
    return piece


def _bad(task: UnitTask, message: str) -> EngineError:
    return EngineError(f"{task.component}: {message}", code="bad_output")


__all__ = ["check_outputs", "check_piece", "compatible", "known_value", "misfit", "out_of_range", "wire"]
