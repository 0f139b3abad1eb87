"""Live input: the gateway that holds a client's socket is the producer of the fields that the client streams in.

    piece -> Chunk on chunk.<r>.input.0.<field> (coalesced) -> First -> ... -> End, when all fields have ended

To everyone else the fields are stream outputs of a node `input`, which no worker makes: its consumers start at the
first piece, and its End makes the value known to `invoke`. That the node exists follows from the stored Accepted alone.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Self

from broker.chunks import ChunkWriter, Coalescer
from broker.coalescer import Closed
from broker.connection import Broker
from broker.crash import crash_at
from broker.errors import RequestEnded, Superseded
from broker.facts import Facts
from broker.lifetimes import fact_ttl
from broker.subjects import chunk as chunk_subject
from broker.subjects import end as end_subject
from broker.subjects import finish as finish_subject
from broker.subjects import first as first_subject
from cornstalk.errors import BadInput, CornstalkError, TooLarge
from cornstalk.messages import INPUT, Accepted, End, Fact, First, Times, decode, encode
from cornstalk.types import Port
from cornstalk.values import no_reference, wire

LIMIT: Final = 64 << 20
"""Bytes of one field, as of any stream (design section 6)."""
PRODUCER: Final = "client"
"""Who the End names as its worker."""


class TakenOver(CornstalkError):
    """Raised when the same client goes on with its input on another connection, or another gateway."""

    code = "taken_over"
    status = 409


class LiveInput:
    """All live fields of one request. What is stored survives; what the client is told is stored is stored.

    A new one, here or on another gateway, takes over from the one before, which from then on can store nothing. The
    client says `input_end` again after a resume: that a field has ended is stored only with the End of all of them.
    """

    def __init__(self, broker: Broker, facts: Facts, accepted: Accepted, ports: Mapping[str, Port]) -> None:
        """For `open`."""
        self._broker, self._facts, self._accepted = broker, facts, accepted
        self._attempt = secrets.token_hex(8)
        self._opened = time.time()
        self._first = 0.0
        self._fields: dict[str, _Field] = {}
        self._ports = ports

    @classmethod
    async def open(
        cls, broker: Broker, facts: Facts, accepted: Accepted, ports: Mapping[str, Port], *, fresh: bool
    ) -> Self:
        """Takes over from whoever streamed in before; `fresh` says that nobody did. Raises what the broker raises."""
        live = cls(broker, facts, accepted, ports)
        for name in ports:
            await live._open(name, fresh)
        ended = None if fresh else await facts.last(end_subject(accepted.request, INPUT, 0))
        for name, field in live._fields.items():
            field.ended = ended is not None and name in decode(End, ended.data).outputs
        return live

    @property
    def stored(self) -> dict[str, dict[str, Any]]:
        """Of each field: how many `chunks` are stored, their `size` in characters, bytes or members, and if it `ended`.

        What a client resumes after is `size`: pieces are joined on their way.
        """
        return {
            name: {"chunks": field.writer.n, "size": field.size, "ended": field.ended}
            for name, field in self._fields.items()
        }

    async def add(self, name: str, data: Any) -> None:
        """The next piece of a field. It waits for a slow broker once 1 MiB is not stored yet.

        Raises BadInput, TooLarge, TakenOver, and RequestEnded or DeadlineExceeded once nobody needs it any more, which
        is so as well after `close`.
        """
        field = self._field(name)
        if field.ended:
            raise BadInput("expected nothing more: this field has ended", name)
        piece, nbytes = _piece(field.port, data)
        if field.nbytes + nbytes > LIMIT:
            raise TooLarge(f"expected at most {LIMIT} bytes in one field, got more", name)
        with self._storing():
            await field.coalescer.add(piece)
        field.nbytes += nbytes
        field.size += len(piece)

    async def end(self, name: str) -> None:
        """No more pieces of a field; after the last field, the End. Idempotent. Raises as `add`."""
        field = self._field(name)
        if field.ended:
            return
        with self._storing():
            await field.coalescer.close()
        field.ended = True
        crash_at("gateway.input_flushed")
        if all(f.ended for f in self._fields.values()):
            await self._store_end()

    async def close(self) -> None:
        """The client is gone. What was not stored yet is not: it says again what is missing when it comes back."""
        for field in self._fields.values():
            await field.coalescer.abandon()

    @contextmanager
    def _storing(self) -> Iterator[None]:
        try:
            yield
        except Superseded as error:
            raise TakenOver("the input of this request goes on over another connection") from error
        except Closed as error:
            raise RequestEnded("this connection has ended its part") from error

    async def _open(self, name: str, fresh: bool) -> None:
        request, deadline = self._accepted.request, self._accepted.deadline
        subject, ttl = chunk_subject(request, INPUT, 0, name), fact_ttl(deadline)
        if not fresh:  # even if nothing is stored yet: a first piece of the attempt before may be on its way
            await ChunkWriter.seal(self._broker, subject, self._attempt, ttl=ttl, deadline=deadline)
        writer = await ChunkWriter.open(self._broker, subject, self._attempt, ttl=ttl, deadline=deadline, fresh=fresh)
        prior, writer.prior = writer.prior, []
        marking = _Marking(writer, self, name)
        if prior:
            await marking.begin()
        field = self._fields[name] = _Field(self._ports[name], writer, Coalescer(marking))
        field.size = sum(len(chunk.payload) for chunk in prior)
        field.nbytes = sum(_nbytes(chunk.payload) for chunk in prior)

    def _field(self, name: str) -> _Field:
        field = self._fields.get(name)
        if field is None:
            raise BadInput(f"expected one of {', '.join(self._fields)}: no other field is open", name)
        return field

    async def begun(self, name: str) -> None:
        """A first piece of a field is stored: consumers may start."""
        self._first = self._first or time.time()
        crash_at("gateway.input")
        mark = First(node=INPUT, gen=0, attempt=self._attempt, output=name)
        await self._put(first_subject(self._accepted.request, INPUT, 0, name), mark)

    async def _store_end(self) -> None:
        times = Times(
            published=self._accepted.accepted_at,
            claimed=self._opened,
            started=self._opened,
            first=self._first,
            ended=time.time(),
        )
        totals = {name: field.writer.n for name, field in self._fields.items()}
        end = End(
            node=INPUT, gen=0, attempt=self._attempt, outcome="done", outputs=totals, worker=PRODUCER, times=times
        )
        stored = decode(End, await self._put(end_subject(self._accepted.request, INPUT, 0), end))
        if stored.outputs != totals:
            raise BadInput("expected nothing more: the input had ended before this connection went on with it", "field")
        crash_at("gateway.input_ended")

    async def _put(self, subject: str, fact: Fact) -> bytes:
        put = await self._facts.put(
            subject,
            encode(fact),
            deadline=self._accepted.deadline,
            unless=finish_subject(self._accepted.request),
            ttl=fact_ttl(self._accepted.deadline),
        )
        return put.data


@dataclass
class _Field:
    port: Port
    writer: ChunkWriter
    coalescer: Coalescer
    size: int = 0  # characters, bytes or members
    nbytes: int = 0
    ended: bool = False


class _Marking:
    """A ChunkWriter that says when the first piece is stored, before the second one is."""

    def __init__(self, writer: ChunkWriter, live: LiveInput, name: str) -> None:
        self._writer, self._live, self._name = writer, live, name
        self._begun = False

    async def append(self, payload: Any, tokens: tuple[int, ...] = ()) -> int:
        seq = await self._writer.append(payload, tokens)
        await self.begin()
        return seq

    async def begin(self) -> None:
        if not self._begun:
            self._begun = True
            await self._live.begun(self._name)


def _piece(port: Port, data: Any) -> tuple[Any, int]:
    """A piece as it is stored, and its bytes. Raises BadInput."""
    kind = type(port.empty)
    if type(data) is not kind:
        wanted: dict[type, str] = {str: "text in `data`", bytes: "a binary frame", list: "a list in `data`"}
        got = "a binary frame" if isinstance(data, bytes) else type(data).__name__
        raise BadInput(f"expected {wanted[kind]}, got {got}", port.name)
    if kind is list:
        try:
            data = wire(port.adapter.validate_python(data), no_reference)
        except (ValueError, TypeError) as error:
            raise BadInput(f"expected {port.type}: {error}", port.name) from error
    try:
        return data, _nbytes(data)
    except (ValueError, OverflowError) as error:
        raise BadInput(f"a piece cannot travel: {error}", port.name) from error


def _nbytes(piece: Any) -> int:
    return len(piece) if isinstance(piece, bytes) else len(encode(piece))
