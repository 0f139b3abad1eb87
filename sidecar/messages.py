"""What crosses the Unix socket, and the two NATS payloads of a sidecar: frozen msgspec structs, a closed schema.

One datagram of the SOCK_SEQPACKET socket is one struct. The client sends `Request`s, the daemon `Reply`s. A request
with an `id` is answered by the reply of the same id, in any order; the others are one-way: once `send` returned, they
are handled even if the sender is killed, and before any `Get` that was sent later by anybody. So are the `Commit`s that
lie in a ledger (`sidecar.ledger`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import Struct

from cornstalk.messages import Ref

VERSION: Final = 4
MAX_MESSAGE: Final = 16384
"""Bytes of the longest datagram."""
PUSHED: Final = 0
"""The id of replies that answer no request."""


class Owner(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Whom a block belongs to: one attempt of one generation of a node."""

    request: str
    node: str
    gen: int
    attempt: str


class Tensor(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A `cornstalk.messages.Ref` on the socket, field by field."""

    request: str
    node: str
    gen: int
    attempt: str
    output: str
    index: int
    host: str
    epoch: str
    arena: int
    offset: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, ref: Ref) -> Tensor:
        return cls(*ref.values)

    def ref(self) -> Ref:
        return Ref(*msgspec.structs.astuple(self))


class Request(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of what a client sends."""


class Hello(Request, frozen=True, tag="hello"):
    """First message of a connection. `quota` bytes of arena are made at once (0 for a pure reader), `limit` at most."""

    id: int
    v: int
    name: str
    quota: int
    limit: int


class Mapped(Request, frozen=True, tag="mapped"):
    """One-way: the arena that was offered is mapped writable here, so the daemon may seal it."""

    arena: int


class Grant(Request, frozen=True, tag="grant"):
    """Asks for a block of `nbytes`; waits `wait` seconds in order of arrival -> Granted or Failed(full).

    0: only what is free now, and nobody of this connection is overtaken. `again`: from now on a block of this size that
    comes free is granted to this connection at once, unasked (a pushed Granted), where it has few of them.
    """

    id: int
    nbytes: int
    wait: float
    count: int  # blocks; those after the first only as far as there is room at once
    again: bool


class Withdraw(Request, frozen=True, tag="withdraw"):
    """One-way: the Grant or Recall of that id is not waited for any more.

    If it was answered, the client aborts the block, or passes on.
    """

    id: int


class Abort(Request, frozen=True, tag="abort"):
    """One-way: a granted block goes back uncommitted."""

    block: int


class Commit(Request, frozen=True, tag="commit"):
    """One-way: a granted block is complete and from now on immutable. `expires` in Unix seconds.

    `hold`: the producer still has views of it; they count as a lease, whose number is that of the block.
    """

    block: int
    tensor: Tensor
    expires: float
    hold: bool


class Heed(Request, frozen=True, tag="heed"):
    """One-way: so many `Commit`s more lie in the ledger. They were sent before what follows this."""

    count: int


class Get(Request, frozen=True, tag="get"):
    """Asks for a lease -> Leased or Failed. `wait` seconds bound the way to another host."""

    id: int
    tensor: Tensor
    wait: float


class EndLease(Request, frozen=True, tag="end"):
    """One-way."""

    lease: int


class Unpinned(Request, frozen=True, tag="unpinned"):
    """One-way: a pin of this block, which no longer lives, was taken back. Says nothing where there was none."""

    block: int


class Recall(Request, frozen=True, tag="recall"):
    """Asks for what was made of the same inputs before -> Recalled or Failed(timeout).

    Its tensors are committed for `owner` until `expires`. Waits up to `wait` seconds for another client that makes it.
    """

    id: int
    key: str
    owner: Owner
    expires: float
    wait: float


class Remember(Request, frozen=True, tag="remember"):
    """One-way: `tensors`, committed here, are what `key` stands for, and `payload` whatever else there is to say."""

    key: str
    payload: bytes
    tensors: tuple[Tensor, ...]


class PassOn(Request, frozen=True, tag="pass"):
    """One-way: this client does not make what it was its turn to make."""

    key: str


class Will(Request, frozen=True, tag="will"):
    """One-way: if this process dies, the daemon publishes -NAK to `reply`."""

    item: str
    reply: str


class WillDone(Request, frozen=True, tag="done"):
    """One-way."""

    item: str


class Drop(Request, frozen=True, tag="drop"):
    """One-way: frees all blocks that this connection committed for `owner`."""

    owner: Owner


class GetStats(Request, frozen=True, tag="stats"):
    """-> Stats"""

    id: int


class Reply(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of what the daemon sends. `id` is that of the request, or PUSHED."""

    id: int


class Welcome(Reply, frozen=True, tag="welcome"):
    """`epoch` is this life of the daemon; `total` the bytes of all its arenas.

    With three descriptors, unless there are none left: the board, read-only, the page for the pins of this client, and
    its end of its ledger.
    """

    host: str
    epoch: str
    total: int


class Arena(Reply, frozen=True, tag="arena"):
    """Pushed, with a writable descriptor: an arena for this producer, to be mapped and confirmed."""

    arena: int
    size: int


class Forget(Reply, frozen=True, tag="forget"):
    """Pushed: the arena is gone, unmap it."""

    arena: int


class Space(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A granted block."""

    block: int
    arena: int
    offset: int
    size: int  # bytes, a multiple of 4096


class Granted(Reply, frozen=True, tag="granted"):
    """At least one. Pushed: blocks of a size that was asked for with `again`."""

    spaces: tuple[Space, ...]


class Leased(Reply, frozen=True, tag="leased"):
    """With a read-only descriptor of the arena if this connection has not had it yet."""

    lease: int
    arena: int
    size: int  # bytes of the arena


class Recalled(Reply, frozen=True, tag="recalled"):
    """`payload` None: it is the turn of this client, which owes a Remember or a PassOn."""

    key: str
    payload: bytes | None
    tensors: tuple[Tensor, ...]


class Failed(Reply, frozen=True, tag="failed"):
    """`code` names a class of `sidecar.errors`. PUSHED: a one-way message was refused."""

    code: str
    message: str


class Stats(Reply, frozen=True, tag="statistics"):
    """Bytes and counts of now; `refused` and `expired` count since the start."""

    host: str
    epoch: str
    total: int  # bytes that arenas may take
    arenas: int
    arena_bytes: int
    granted_bytes: int  # reserved, not committed; spares of clients included
    committed_bytes: int  # those of the cache included
    blocks: int  # committed
    leases: int  # those without a round trip count once for each client
    waiters: int
    wills: int
    connections: int
    refused: int
    expired: int
    cached: int  # entries of the cache
    cached_bytes: int


Requests = (
    Hello | Mapped | Grant | Withdraw | Abort | Commit | Heed | Get | EndLease | Unpinned | Recall | Remember
    | PassOn | Will | WillDone | Drop | GetStats
)  # fmt: skip
Replies = Welcome | Arena | Forget | Granted | Leased | Recalled | Failed | Stats

encode = msgspec.msgpack.Encoder().encode
decode_request = msgspec.msgpack.Decoder(Requests).decode
decode_commit = msgspec.msgpack.Decoder(Commit).decode
decode_reply = msgspec.msgpack.Decoder(Replies).decode


def number_of(data: memoryview) -> int:
    """The id of a request that is malformed elsewhere, or PUSHED."""
    try:
        match msgspec.msgpack.decode(data):
            case ["hello" | "grant" | "get" | "recall" | "stats", int(number), *_]:
                return number
    except msgspec.MsgspecError:
        pass
    return PUSHED


class Release(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One entry of a release hint: [request] all blocks of a request, [request, node, gen] those of a generation."""

    request: str
    node: str | None = None
    gen: int | None = None

    def __post_init__(self) -> None:
        if (self.node is None) != (self.gen is None):
            raise ValueError("a release names a node and its generation, or neither")


class Share(Struct, frozen=True):
    """Published each second on `broker.subjects.SIDECAR_SHARE`, for admission. Bytes."""

    host: str
    free: int  # what producers can still get
    total: int
    largest: int  # largest tensor that fits without waiting


_releases = msgspec.msgpack.Decoder(list[Release])


def encode_releases(releases: Iterable[Release]) -> bytes:
    """Payload of `broker.subjects.release_hint(host)`: a msgpack list of `Release`."""
    return encode(list(releases))


def decode_releases(data: bytes) -> list[Release]:
    """Raises msgspec.MsgspecError."""
    return _releases.decode(data)
