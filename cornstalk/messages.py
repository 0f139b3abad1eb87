"""What crosses a process: frozen msgspec structs in msgpack (design section 3). No pickle, no class lookup by name.

Every struct carries `v`. Fields are only added, with defaults; unknown fields are ignored. A reader that meets a higher
`v` raises `NewerVersion` and hands the message back. Times are Unix seconds (float) unless a field says otherwise.

Inputs, outputs and chunk payloads are msgpack values in which `Edge`, `Ref`, `StreamRef` and `Upload` may stand at any
depth (cornstalk/extensions.py).
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec import Struct

from cornstalk.extensions import (
    Edge,
    Extension,
    Inline,
    Ref,
    StreamRef,
    Upload,
    enc_hook,
    ext_hook,
    extensions,
    substitute,
)

__all__ = [
    "FACTS",
    "INPUT",
    "LONGEST_DEADLINE",
    "VERSION",
    "Accepted",
    "Cancel",
    "Chunk",
    "Edge",
    "Encoding",
    "End",
    "Error",
    "Extension",
    "Fact",
    "Finish",
    "First",
    "Graph",
    "Inline",
    "Kind",
    "Lane",
    "Malformed",
    "Message",
    "NewerVersion",
    "Node",
    "Outcome",
    "Ref",
    "Row",
    "Status",
    "StreamRef",
    "Times",
    "Try",
    "Upload",
    "Usage",
    "WorkItem",
    "decode",
    "decode_value",
    "encode",
    "extensions",
    "substitute",
]

VERSION: Final = 1
LONGEST_DEADLINE: Final = 24 * 3600.0
"""Seconds that a request, or a batch job, may take at most (design rule 8)."""

Lane = Literal["interactive", "batch"]
Kind = Literal["value", "tensor", "stream"]
Outcome = Literal["done", "failed", "lost", "cancelled", "expired"]
Status = Literal["done", "failed", "cancelled", "expired"]
Encoding = Literal["json", "msgpack"]


class NewerVersion(Exception):
    """Raised when a message was written by a newer release: hand it back with delay, do not judge it."""


class Malformed(Exception):
    """Raised when bytes are no message of the expected kind. `data` holds the first 64 bytes for an operator's log."""

    def __init__(self, kind: str, cause: str, data: bytes) -> None:
        super().__init__(f"not a {kind} message: {cause}")
        self.data = data[:64]


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


class Row(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Of a request that runs a row of a batch job: which one, and in what form its result is wanted."""

    job: str
    row: int
    encoding: Encoding = "msgpack"


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
    input: dict[str, Any] = {}  # a field that arrives while the request runs: StreamRef(request, INPUT, 0, field)
    row: Row | None = None  # its result is stored before it is purged


INPUT: Final = "input"
"""Token and id of the node that stands for what a client streams in while its request runs. No call has this token."""


class Node(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call of a unit task."""

    id: str  # path of the composite call, task, ordinal: "topic#0/small#1"; "~branch" after a cut
    token: str  # short base32 hash of id: the node in subjects, Msg-Ids and other structs
    component: str  # empty: no worker makes it (INPUT)
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
    closed: bool = False  # the pass came to its end: no further node is expected (docs/decisions/002)
    release: str = ""  # what recorded it: cornstalk/release.py
    streams: dict[str, tuple[str, str]] = {}  # serve returned: stream field -> (token, output), as clients are told


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
    payload: Any = None  # str, bytes or list; of a stream of tensors a list of Inline and Ref
    takeover: bool = False
    tokens: tuple[int, ...] = ()  # what a model drew since the piece before: an attempt that goes on is forced to them


class Usage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a node consumed, counted once: in the End that won."""

    run_s: float = 0.0
    tokens_in: int = 0
    tokens_out: int = 0
    tensor_bytes: int = 0
    cached: bool = False  # equal inputs were computed before: nothing ran


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


class DeadLetter(Message, frozen=True, kw_only=True):
    """dlq.<component>.<reason>.<r>.<node>.<gen>: work that was given up, for whoever runs the system."""

    item: bytes  # the WorkItem as it was delivered
    error: Error
    attempts: int  # deliveries
    accepted: bytes = b""  # the request's Accepted, by which it can be asked again; empty if it was purged before


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


_encoder = msgspec.msgpack.Encoder(enc_hook=enc_hook)
_value_decoder = msgspec.msgpack.Decoder(ext_hook=ext_hook)
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
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind, ext_hook=ext_hook)
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
