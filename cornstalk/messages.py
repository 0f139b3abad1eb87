"""What crosses a process: frozen msgspec structs in msgpack (design section 3). No pickle, no class lookup by name.

Every struct carries `v`. Fields are only added, with defaults; unknown fields are ignored. A reader that meets a higher
`v` raises `NewerVersion` and hands the message back. Times are Unix seconds (float) unless a field says otherwise.

Inputs, outputs and chunk payloads are msgpack values in which `Edge`, `Ref`, `StreamRef` and `Upload` may stand at any
depth. They travel as msgpack extension types, which request data (JSON, or msgpack without extensions) cannot forge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final, Literal, Self, TypeVar, dataclass_transform, get_type_hints

import msgspec
from msgspec import Struct
from pydantic_core import core_schema

VERSION: Final = 1

Lane = Literal["interactive", "batch"]
Kind = Literal["value", "tensor", "stream"]
Outcome = Literal["done", "failed", "lost", "cancelled", "expired"]
Status = Literal["done", "failed", "cancelled", "expired"]


class NewerVersion(Exception):
    """Raised when a message was written by a newer release: hand it back with delay, do not judge it."""


class Malformed(Exception):
    """Raised when bytes are no message of the expected kind. `data` holds the first 64 bytes for an operator's log."""

    def __init__(self, kind: str, cause: str, data: bytes) -> None:
        super().__init__(f"not a {kind} message: {cause}")
        self.data = data[:64]


@dataclass_transform(frozen_default=True)
class Extension:
    """Base of the values that travel as a msgpack extension type. Immutable, compared by value.

    A plain class, for msgspec encodes structs and dataclasses natively and would turn them into forgeable arrays.
    """

    __slots__ = ("_values",)
    code: ClassVar[int]
    names: ClassVar[tuple[str, ...]]
    _decode: ClassVar[Callable[[bytes], tuple[Any, ...]]]
    _values: tuple[Any, ...]

    def __init_subclass__(cls, code: int) -> None:
        hints = {n: h for n, h in get_type_hints(cls).items() if n in cls.__annotations__}
        cls.code, cls.names = code, tuple(hints)
        cls._decode = msgspec.msgpack.Decoder(tuple[*hints.values()]).decode  # type: ignore[misc]
        for index, name in enumerate(cls.names):
            setattr(cls, name, _field(index))
        _EXTENSIONS[code] = cls

    def __init__(self, *values: Any, **named: Any) -> None:
        rest = self.names[len(values) :]
        if set(named) != set(rest):
            raise TypeError(f"{type(self).__name__} takes {', '.join(self.names)}")
        object.__setattr__(self, "_values", (*values, *(named[n] for n in rest)))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._values == self._values

    def __hash__(self) -> int:
        return hash((self.code, self._values))

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({', '.join(f'{n}={v!r}' for n, v in zip(self.names, self._values, strict=True))})"
        )

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def replace(self, **changes: Any) -> Self:
        """The same value with some fields changed."""
        return type(self)(**{**dict(zip(self.names, self._values, strict=True)), **changes})


_EXTENSIONS: dict[int, type[Extension]] = {}


def _field(index: int) -> property:
    def read(self: Extension) -> Any:
        return self._values[index]

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


class Message(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of all stored messages."""

    v: int = VERSION


class Error(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A failure on its way to the client: which component and node, what, and whether trying again may help."""

    code: str
    message: str
    component: str = ""
    node: str = ""
    attempt: str = ""
    retryable: bool = False


class Accepted(Message, frozen=True, kw_only=True):
    """run.<r>.accepted: the gateway took responsibility. From here nothing is lost."""

    request: str
    tenant: str
    app: str
    app_version: str
    lane: Lane = "interactive"
    durable: bool = False
    deadline: float
    resume_grace: float = 0.0  # seconds a client may be away before its request is cancelled
    seed: int = 0
    trace: str = ""  # W3C traceparent
    accepted_at: float = 0.0
    input: dict[str, Any] = {}


class Node(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call of a unit task."""

    id: str  # path of the composite call, task, ordinal: "topic#0/small#1"; "~branch" after a cut
    token: str  # short base32 hash of id: the node in subjects, Msg-Ids and other structs
    component: str
    line: str = ""  # "file.py:12", where the user called it
    seed: int = 0
    seen: int = 0  # RUNS sequence of the newest event known when it was recorded (notes/record.md rule 16)
    inputs: dict[str, Any] = {}
    outputs: dict[str, Kind] = {}


class Graph(Message, frozen=True, kw_only=True):
    """run.<r>.graph.<index>: what one record pass added. `cuts` are tokens of guesses given up."""

    index: int
    nodes: tuple[Node, ...] = ()
    cuts: tuple[str, ...] = ()
    closed: bool = False  # no further pass will add a node


class WorkItem(Message, frozen=True, kw_only=True):
    """work.<component>.<lane>: one node, ready to run. Msg-Id request:node:gen."""

    request: str
    node: str  # token
    gen: int
    component: str
    lane: Lane
    tenant: str
    deadline: float
    trace: str = ""
    seed: int = 0
    inputs: dict[str, Any] = {}  # Edge replaced by its value, a Ref or a StreamRef
    outputs: dict[str, Kind] = {}


class First(Message, frozen=True, kw_only=True):
    """run.<r>.node.<node>.<gen>.first.<output>: a stream output has begun."""

    node: str
    gen: int
    attempt: str
    output: str


class Try(Message, frozen=True, kw_only=True):
    """run.<r>.node.<node>.<gen>.try.<attempt>: a suspect item is about to start (poison rule)."""

    node: str
    gen: int
    attempt: str


class Chunk(Message, frozen=True, kw_only=True):
    """chunk.<r>.<node>.<gen>.<output>: one piece. An empty one (`takeover`) is where a new attempt takes over."""

    attempt: str
    n: int  # number of pieces before this one, takeovers not counted
    payload: Any = None  # str, bytes, list, or Ref
    takeover: bool = False


class Usage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a node consumed, counted once: in the End that won."""

    run_s: float = 0.0
    tokens_in: int = 0
    tokens_out: int = 0
    tensor_bytes: int = 0


class Times(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Wall clock of an attempt: claimed by the worker, inputs there, first chunk, end."""

    published: float = 0.0
    claimed: float = 0.0
    started: float = 0.0
    first: float = 0.0
    ended: float = 0.0


class End(Message, frozen=True, kw_only=True):
    """run.<r>.node.<node>.<gen>.end: the one outcome of generation gen."""

    node: str
    gen: int
    attempt: str
    outcome: Outcome
    outputs: dict[str, Any] = {}  # value: the value; tensor: Ref; stream: number of chunks (total)
    vanished: tuple[tuple[str, int], ...] = ()  # outcome lost: the (node, gen) whose outputs could not be read
    error: Error | None = None
    worker: str = ""
    usage: Usage = Usage()
    times: Times = Times()


class Cancel(Message, frozen=True, kw_only=True):
    """run.<r>.cancel."""

    reason: str = ""


class Finish(Message, frozen=True, kw_only=True):
    """run.<r>.end: the one outcome of the request."""

    status: Status
    response: Any = None  # the response model as a msgpack value; each open stream field is a StreamRef
    error: Error | None = None
    times: dict[str, float] = {}


Fact = Accepted | Graph | First | Try | End | Cancel | Finish

FACTS: Final[dict[str, type[Fact]]] = {
    "accepted": Accepted,
    "graph": Graph,
    "first": First,
    "try": Try,
    "node-end": End,
    "cancel": Cancel,
    "end": Finish,
}
"""What is stored under which kind of subject (broker.subjects.RunKey.kind)."""

M = TypeVar("M", bound=Message)


def _enc_hook(value: Any) -> Any:
    if isinstance(value, Extension):
        return msgspec.msgpack.Ext(value.code, _encoder.encode(value._values))
    raise TypeError(f"a {type(value).__name__} cannot travel in a message")


def _ext_hook(code: int, data: memoryview) -> Any:
    kind = _EXTENSIONS.get(code)
    if kind is None:
        raise msgspec.ValidationError(f"unknown extension type {code}")
    return kind(*kind._decode(bytes(data)))


_encoder = msgspec.msgpack.Encoder(enc_hook=_enc_hook)
_value_decoder = msgspec.msgpack.Decoder(ext_hook=_ext_hook)
_decoders: dict[type[Message], msgspec.msgpack.Decoder[Any]] = {}


class _Versioned(Struct, frozen=True):
    v: int = VERSION


_peek = msgspec.msgpack.Decoder(_Versioned)


def encode(value: Any) -> bytes:
    """A message, or a value with extensions in it, as msgpack."""
    return _encoder.encode(value)


def decode(kind: type[M], data: bytes) -> M:
    """One message. Raises `NewerVersion` or `Malformed`."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind, ext_hook=_ext_hook)
    try:
        message: M = decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        _refuse_newer(kind, data)
        raise Malformed(kind.__name__, str(error), data) from error
    if message.v > VERSION:
        _refuse_newer(kind, data)
    return message


def _refuse_newer(kind: type[Message], data: bytes) -> None:
    try:
        v = _peek.decode(data).v
    except msgspec.MsgspecError:
        return
    if v > VERSION:
        raise NewerVersion(f"{kind.__name__} has version {v}, this release reads {VERSION}: update this process")


def decode_value(data: bytes) -> Any:
    """A bare msgpack value with extensions in it. Raises msgspec.MsgspecError."""
    return _value_decoder.decode(data)


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
