"""Values that stand inside inputs, outputs and chunks as msgpack extension types: references and uploads.

Request data (JSON, or msgpack without extensions) cannot forge them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Self, dataclass_transform, get_type_hints

import msgspec
from pydantic_core import core_schema

_plain = msgspec.msgpack.Encoder().encode


@dataclass_transform(frozen_default=True)
class Extension:
    """Base of the values that travel as a msgpack extension type. Immutable, compared by `values`, its fields in order.

    A plain class, for msgspec encodes structs and dataclasses natively and would turn them into forgeable arrays.
    """

    __slots__ = ("values",)
    code: ClassVar[int]
    names: ClassVar[tuple[str, ...]]
    _decode: ClassVar[Callable[[bytes], tuple[Any, ...]]]
    values: tuple[Any, ...]

    def __init_subclass__(cls, code: int) -> None:
        hints = {n: h for n, h in get_type_hints(cls).items() if n in cls.__annotations__}
        cls.code, cls.names = code, tuple(hints)
        cls._decode = msgspec.msgpack.Decoder(tuple[*hints.values()]).decode  # type: ignore[misc]
        for index, name in enumerate(cls.names):
            setattr(cls, name, _field(index))
        _EXTENSIONS[code] = cls

    def __init__(self, *values: Any, **named: Any) -> None:
        rest = self.names[len(values) :] if named else ()
        if len(values) + len(rest) != len(self.names) or (named and set(named) != set(rest)):
            raise TypeError(f"{type(self).__name__} takes {', '.join(self.names)}")
        if named:
            values = (*values, *(named[n] for n in rest))
        object.__setattr__(self, "values", values)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.values == self.values

    def __hash__(self) -> int:
        return hash((self.code, self.values))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{n}={v!r}' for n, v in zip(self.names, self.values, strict=True))})"

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def replace(self, **changes: Any) -> Self:
        """The same value with some fields changed."""
        return type(self)(**{**dict(zip(self.names, self.values, strict=True)), **changes})


_EXTENSIONS: dict[int, type[Extension]] = {}


def _field(index: int) -> property:
    def read(self: Extension) -> Any:
        return self.values[index]

    return property(read)


class Edge(Extension, code=1):
    """An input that is an output of another node of the same request (in a Graph)."""

    node: str  # token
    output: str
    stream: bool  # may start at the producer's first chunk


class Ref(Extension, code=2):
    """A tensor in a sidecar: whose it is, and where. Never the bytes."""

    request: str
    node: str
    gen: int
    attempt: str
    output: str
    index: int  # 0, or the chunk number of a stream of tensors
    host: str  # machine whose sidecar holds it
    epoch: str  # life of that sidecar: another one means the block is gone
    arena: int
    offset: int  # bytes
    nbytes: int
    dtype: str  # numpy name, or "bfloat16"
    shape: tuple[int, ...]


class StreamRef(Extension, code=3):
    """A running or finished stream output: read it from CHUNKS (in a WorkItem)."""

    request: str
    node: str
    gen: int
    output: str


class Upload(Extension, code=4):
    """Bytes that a client sent, spooled once and content-addressed. The root of lineage."""

    digest: str  # blake2b-256 of the bytes, hex
    nbytes: int
    media_type: str  # as sniffed from the content

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.is_instance_schema(cls)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        return {"type": "string", "format": "binary"}


class Inline(Extension, code=5):
    """A small tensor that travels itself, in a stream of tensors: a Ref would be as long, and could be lost."""

    dtype: str  # numpy name, or "bfloat16"
    shape: tuple[int, ...]
    data: bytes  # row-major, little-endian


def enc_hook(value: Any) -> Any:
    if isinstance(value, Extension):
        return msgspec.msgpack.Ext(value.code, _plain(value.values))
    raise TypeError(f"a {type(value).__name__} cannot travel in a message")


def ext_hook(code: int, data: memoryview) -> Any:
    kind = _EXTENSIONS.get(code)
    if kind is None:
        raise msgspec.ValidationError(f"unknown extension type {code}")
    return kind(*kind._decode(bytes(data)))


def substitute(value: Any, change: Callable[[Extension], Any]) -> Any:
    """A copy of a msgpack value in which each extension is replaced by `change(extension)`."""
    if isinstance(value, Extension):
        return change(value)
    if isinstance(value, dict):
        return {k: substitute(v, change) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [substitute(v, change) for v in value]
    return value


def extensions(value: Any) -> list[Extension]:
    """Every extension in a msgpack value, in order."""
    if isinstance(value, Extension):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return []
    return [e for v in value for e in extensions(v)]
