"""What a field of a task, a request or a response may be, beyond plain Python: Tensor, Stream, Upload, audio."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Final, Self, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, TypeAdapter
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic_core import core_schema

from cornstalk.messages import Edge, Kind, Upload
from cornstalk.pending import Recorder, Source, current, is_pending, pending_class, stale
from cornstalk.serving import LiveStream

T = TypeVar("T")


class _StreamMark:
    """Lets a pydantic field typed Stream[T] take a T that is still arriving."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        kind = get_origin(source) or source

        def take(value: Any, check: Callable[[Any], Any]) -> Any:
            if (is_pending(value) and isinstance(value, kind)) or isinstance(value, LiveStream):
                return value
            checked = check(value)
            # the very object where possible: response.py finds by identity which output it came from
            return value if type(value) is type(checked) is list and value == checked else checked

        return core_schema.no_info_wrap_validator_function(take, handler(source))


STREAM: Final = _StreamMark()
Stream = Annotated[T, STREAM]
"""A T that arrives in pieces which add up to it: `str`, `bytes` or a list. Type checkers see T."""


@dataclass(frozen=True)
class Pcm:
    """Mark of audio chunks: signed 16 bit, little-endian, mono, `rate` samples per second."""

    rate: int

    @property
    def media_type(self) -> str:
        return f"audio/pcm;rate={self.rate};channels=1"

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {**handler(schema), "contentMediaType": self.media_type}


Audio = Annotated[bytes, Pcm(24_000)]
"""int16 little-endian mono at 24 kHz."""


@dataclass(frozen=True)
class Media:
    """Mark of the bytes of a file."""

    media_type: str

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {**handler(schema), "contentMediaType": self.media_type}


Image = Annotated[bytes, Media("image/png")]
"""A picture."""
Video = Annotated[bytes, Media("video/mp4")]
"""Plays while it arrives."""


class _Opaque:
    """What lies in the data plane: the same class in every pass. `invoke` may pass it on, never look into it."""

    __slots__ = ("edge", "run")

    def __init__(self, edge: Edge, run: Recorder | None = None) -> None:
        self.edge = edge
        self.run = run  # the pass that handed it out: in another one it is stale

    def _opaque(self, *_: Any) -> Any:
        raise TypeError(f"a {type(self).__name__} has no value inside invoke; compute on it in a task")

    __bool__ = __iter__ = __len__ = __getitem__ = __array__ = __float__ = __int__ = _opaque
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.edge == self.edge

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def _cs_wait(self) -> None:
        self.check()
        if self.run is not None:
            self.run.await_node(self.edge.node)

    def check(self) -> None:
        """Raises StaleResult if it was kept from another pass or request."""
        if current.get() is not self.run:
            stale(Source(self.edge.node, self.edge.output, None, self.edge.node))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.is_instance_schema(cls)


class Tensor(_Opaque):
    """A tensor in the data plane."""

    __slots__ = ()


class Tensors(_Opaque):
    """A `Stream[list[Tensor]]` as `invoke` has it: tensors of any shapes that arrive one after the other."""

    __slots__ = ()


@dataclass(frozen=True, eq=False)
class Port:
    """One input or output of a unit task."""

    name: str
    type: Any  # without the Stream mark
    kind: Kind
    pending: type | None = None  # None: reading it waits, for the value may be told apart by `is`
    pcm: Pcm | None = None
    required: bool = True
    default: Any = None

    @cached_property
    def exact(self) -> type | None:
        """A value of just this type needs no check."""
        base = get_args(self.type)[0] if get_origin(self.type) is Annotated and self.pcm else self.type
        return base if base in (str, bytes, int, float, bool) else None

    @property
    def tensors(self) -> bool:
        """Whether it is a stream of tensors. `invoke` sees it as `Tensors`, an engine as pieces that are lists."""
        return self.kind == "stream" and bare(self.type)[0] == list[Tensor]

    @property
    def empty(self) -> Any:
        """What a stream of this type adds up to without a piece: "", b"" or []."""
        base = bare(self.type)[0]
        return (get_origin(base) or base)()

    @cached_property
    def adapter(self) -> TypeAdapter[Any]:
        return adapter(self.type)


def adapter(hint: Any) -> TypeAdapter[Any]:
    """Checks values of a type, which may be any class."""
    try:
        return TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True))
    except PydanticUserError:  # a model brings its own config
        return TypeAdapter(hint)


def bare(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """A type without Annotated, and its marks."""
    if get_origin(hint) is Annotated:
        return get_args(hint)[0], get_args(hint)[1:]
    return hint, ()


def field_type(field: FieldInfo) -> Any:
    """The type of a pydantic field, with its marks."""
    return Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation


def is_stream(hint: Any) -> bool:
    return STREAM in bare(hint)[1]


def pcm_of(hint: Any) -> Pcm | None:
    """The audio format that a type declares (of a pydantic field: of its `field_type`)."""
    return next((m for m in bare(hint)[1] if isinstance(m, Pcm)), None)


def media_type_of(hint: Any) -> str:
    """What bytes are, if their type says so; else "". Of a pydantic field: of its `field_type`."""
    return next((mark.media_type for mark in bare(hint)[1] if isinstance(mark, (Pcm, Media))), "")


def make_port(name: str, hint: Any, *, required: bool = True, default: Any = None) -> Port:
    """The port that a type declares. Raises TypeError for a stream of what cannot arrive in pieces."""
    base, marks = bare(hint)
    kind = get_origin(base) or base
    rest = tuple(m for m in marks if m is not STREAM)
    plain = Annotated[(base, *rest)] if rest else base
    if kind is Tensor:
        if is_stream(hint):
            raise TypeError(f"{name}: tensors that arrive one after the other are a Stream[list[Tensor]]")
        return Port(name, base, "tensor", None, None, required, default)
    lazy = kind in (str, bytes, int, float, list, dict, tuple) or (
        inspect.isclass(kind) and issubclass(kind, BaseModel) and not issubclass(kind, enum.Enum)
    )
    if is_stream(hint) and kind not in (str, bytes, list):
        raise TypeError(f"{name}: only str, bytes and list arrive in pieces, not {base!r}")
    return Port(
        name,
        plain,
        "stream" if is_stream(hint) else "value",
        pending_class(kind) if lazy else None,
        pcm_of(hint),
        required,
        default,
    )


__all__ = [
    "STREAM",
    "Audio",
    "Image",
    "Media",
    "Pcm",
    "Port",
    "Stream",
    "Tensor",
    "Tensors",
    "Upload",
    "Video",
    "field_type",
    "is_stream",
    "make_port",
    "media_type_of",
    "pcm_of",
]
