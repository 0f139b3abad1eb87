"""The block book against a model that keeps every block for ever and judges its life by definition."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sidecar.blocks import LONGEST, Book, Place
from sidecar.board import Board
from sidecar.errors import Denied, Gone, StaleEpoch
from sidecar.messages import Owner, Tensor

SIZE = 4096
PEERS = st.integers(1, 3)
REQUESTS = st.sampled_from(["r1", "r2"])
NODES = st.sampled_from(["a", "b"])
GENS = st.integers(0, 1)
ATTEMPTS = st.sampled_from(["x", "y"])


def header(place: Place, owner: Owner, **changes: object) -> Tensor:
    tensor = Tensor(
        *msgspec.structs.astuple(owner), "out", 0, "h", "e", place.arena, place.offset, 16, "float32", (2, 2)
    )  # fmt: skip
    return msgspec.structs.replace(tensor, **changes)


@dataclass
class Known:
    """One block as the model sees it; several share a place, each with an owner of its own."""

    number: int  # -1: shared
    producer: int
    place: Place
    owner: Owner | None = None
    expires: float = 0.0
    released: bool = False
    dead: bool = False  # aborted, or died with its producer uncommitted
    leases: dict[int, int] = field(default_factory=dict)  # lease -> peer

    @property
    def free(self) -> bool:
        return self.dead or (self.released and not self.leases)


class Blocks(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.book = Book("h", "e", Board([0] * 64))
        self.known: list[Known] = []
        self.freed: set[int] = set()  # offsets, each used once
        self.now = 1000.0
        self.offsets = itertools.count(0, SIZE)
        self.peer_of = {1: 1, 2: 2, 3: 3}  # slot -> connection now
        self.connections = itertools.count(4)

    def take(self, places: list[Place]) -> None:
        """Memory came free: once, and only what the model calls free: what none of its owners needs."""
        for place in places:
            assert place.offset not in self.freed, "freed twice"
            self.freed.add(place.offset)
        used = {block.place.offset for block in self.known if not block.free}
        assert self.freed == {block.place.offset for block in self.known} - used

    def some(self, data: st.DataObject, blocks: list[Known]) -> Known:
        return data.draw(st.sampled_from(blocks))

    @rule(slot=PEERS)
    def grant(self, slot: int) -> None:
        place = Place(1, next(self.offsets))
        self.known.append(Known(self.book.grant(self.peer_of[slot], place, SIZE), self.peer_of[slot], place))

    @precondition(lambda self: self.known)
    @rule(data=st.data(), slot=PEERS)
    def abort(self, data: st.DataObject, slot: int) -> None:
        block, peer = self.some(data, self.known), self.peer_of[slot]
        if block.producer == peer and block.owner is None and not block.dead:
            block.dead = True
            self.take(self.book.abort(peer, block.number))
        else:
            with pytest.raises(Denied):
                self.book.abort(peer, block.number)

    @precondition(lambda self: self.known)
    @rule(
        data=st.data(), slot=PEERS, request=REQUESTS, node=NODES, gen=GENS, attempt=ATTEMPTS,
        life=st.integers(-1, 50), hold=st.booleans(),
    )  # fmt: skip
    def commit(self, data, slot, request, node, gen, attempt, life, hold) -> None:  # type: ignore[no-untyped-def]
        block, peer, owner = self.some(data, self.known), self.peer_of[slot], Owner(request, node, gen, attempt)
        arguments = {"expires": self.now + life, "hold": hold, "now": self.now}
        if block.producer == peer and block.owner is None and not block.dead:
            block.owner, block.expires = owner, self.now + life
            if hold:
                block.leases[block.number] = peer
            self.passed()
            self.take(self.book.commit(peer, block.number, header(block.place, owner), **arguments))
        else:
            with pytest.raises(Denied):
                self.book.commit(peer, block.number, header(block.place, owner), **arguments)

    @precondition(lambda self: any(block.owner for block in self.known))
    @rule(data=st.data(), slot=PEERS)
    def lease(self, data: st.DataObject, slot: int) -> None:
        block = self.some(data, [block for block in self.known if block.owner])
        assert block.owner is not None
        tensor = header(block.place, block.owner)
        if block.released:
            with pytest.raises(Gone):
                self.book.lease(self.peer_of[slot], tensor)
        else:
            block.leases[self.book.lease(self.peer_of[slot], tensor)] = self.peer_of[slot]

    @precondition(lambda self: any(block.owner for block in self.known))
    @rule(
        data=st.data(), slot=PEERS, request=REQUESTS, node=NODES, gen=GENS, attempt=ATTEMPTS, life=st.integers(1, 50)
    )  # fmt: skip
    def share(self, data, slot, request, node, gen, attempt, life) -> None:  # type: ignore[no-untyped-def]
        block, owner = (
            self.some(data, [block for block in self.known if block.owner]),
            Owner(request, node, gen, attempt),
        )
        assert block.owner is not None
        arguments = header(block.place, block.owner), owner, self.now + life, self.now
        if block.released:
            with pytest.raises(Gone):
                self.book.share(self.peer_of[slot], *arguments)
        elif not any(other.place == block.place and other.owner == owner and not other.free for other in self.known):
            assert self.book.share(self.peer_of[slot], *arguments) == header(block.place, owner)
            self.known.append(Known(-1, self.peer_of[slot], block.place, owner, self.now + life))

    @precondition(lambda self: any(block.leases for block in self.known))
    @rule(data=st.data())
    def end_lease(self, data: st.DataObject) -> None:
        block = self.some(data, [block for block in self.known if block.leases])
        lease = data.draw(st.sampled_from(sorted(block.leases)))
        with pytest.raises(Denied):
            self.book.end_lease(0, lease)
        peer = block.leases.pop(lease)
        self.take(self.book.end_lease(peer, lease))

    @rule(request=REQUESTS, node=st.none() | NODES, gen=GENS)
    def release(self, request: str, node: str | None, gen: int) -> None:
        for block in self.known:
            owner = block.owner
            if owner and owner.request == request and (node is None or (owner.node, owner.gen) == (node, gen)):
                block.released = True
        self.take(self.book.release(request, node, None if node is None else gen))

    @rule(slot=PEERS, request=REQUESTS, node=NODES, gen=GENS, attempt=ATTEMPTS)
    def drop(self, slot: int, request: str, node: str, gen: int, attempt: str) -> None:
        owner = Owner(request, node, gen, attempt)
        for block in self.known:
            if block.owner == owner and block.producer == self.peer_of[slot]:
                block.released = True
        self.take(self.book.drop(self.peer_of[slot], owner))

    @rule(seconds=st.integers(0, 30))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds
        self.passed()
        self.take(self.book.expire(self.now))

    @rule(slot=PEERS)
    def connection_dies(self, slot: int) -> None:
        peer, self.peer_of[slot] = self.peer_of[slot], next(self.connections)
        for block in self.known:
            block.leases = {lease: holder for lease, holder in block.leases.items() if holder != peer}
            block.dead = block.dead or (block.producer == peer and block.owner is None)
        self.take(self.book.close(peer))

    def passed(self) -> None:
        for block in self.known:
            if block.owner and block.expires <= self.now:
                block.released = True

    @invariant()
    def accounting(self) -> None:
        live = [block for block in self.known if not block.free]
        committed = [block for block in live if block.owner]
        assert self.book.blocks == len(committed)
        assert self.book.committed_bytes == SIZE * len({block.place for block in committed})
        assert self.book.granted_bytes == SIZE * (len(live) - len(committed))
        for peer in {block.producer for block in self.known}:
            granted = sum(1 for block in live if block.producer == peer and not block.owner)
            assert self.book.granted(peer) == ({SIZE: granted} if granted else {})
        assert self.book.leases == sum(len(block.leases) for block in self.known)


TestBlocks = Blocks.TestCase
TestBlocks.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


OWNER = Owner("r", "n", 0, "a")


def book_with_block() -> tuple[Book, int, Place]:
    book, place = Book("h", "e", Board([0] * 64)), Place(1, 8192)
    return book, book.grant(1, place, SIZE), place


@pytest.mark.parametrize(
    "changes",
    [
        {"host": "elsewhere"},
        {"epoch": "before"},
        {"arena": 2},
        {"offset": 4096},
        {"offset": 8193},
        {"offset": -4096},
        {"nbytes": 15},
        {"nbytes": -16},
        {"shape": (2, 3)},
        {"shape": (-2, -2)},
        {"shape": (1 << 33, 1 << 33)},
        {"shape": (1,) * 8 + (4,)},
        {"shape": (1024, 2), "nbytes": 8192},
        {"dtype": "object"},
        {"dtype": "float33"},
        {"gen": -1},
        {"index": -1},
    ],
)
def test_a_header_that_does_not_fit_its_block_is_refused(changes: dict[str, object]) -> None:
    book, number, place = book_with_block()
    with pytest.raises(Denied):
        book.commit(1, number, header(place, OWNER, **changes), expires=60.0, hold=False, now=0.0)
    book.commit(1, number, header(place, OWNER), expires=60.0, hold=False, now=0.0)


@pytest.mark.parametrize("expires", [math.nan, math.inf])
def test_expiry_is_a_time(expires: float) -> None:
    book, number, place = book_with_block()
    with pytest.raises(Denied):
        book.commit(1, number, header(place, OWNER), expires=expires, hold=False, now=0.0)


def test_no_block_lives_longer_than_the_longest_deadline() -> None:
    book, number, place = book_with_block()
    book.commit(1, number, header(place, OWNER), expires=1e12, hold=False, now=0.0)
    assert book.expire(LONGEST - 1) == []
    assert book.expire(LONGEST) == [place]


@pytest.mark.parametrize("field", ["request", "node", "gen", "attempt", "output", "index", "nbytes", "dtype", "shape"])
def test_a_ref_must_be_the_committed_one_in_every_field(field: str) -> None:
    book, number, place = book_with_block()
    tensor = header(place, OWNER)
    book.commit(1, number, tensor, expires=60.0, hold=False, now=0.0)
    other = {str: "other", int: 9, tuple: (4,)}[type(getattr(tensor, field))]
    with pytest.raises(Gone):
        book.lease(2, msgspec.structs.replace(tensor, **{field: other}))
    book.lease(2, tensor)


def test_a_ref_of_an_earlier_life_is_stale() -> None:
    book, number, place = book_with_block()
    book.commit(1, number, header(place, OWNER), expires=60.0, hold=False, now=0.0)
    with pytest.raises(StaleEpoch):
        book.lease(2, header(place, OWNER, epoch="before"))


def test_a_block_that_expires_under_a_reader_is_freed_by_the_reader() -> None:
    book, number, place = book_with_block()
    book.commit(1, number, header(place, OWNER), expires=60.0, hold=False, now=0.0)
    lease = book.lease(2, header(place, OWNER))
    assert book.expire(61.0) == []
    with pytest.raises(Gone):
        book.lease(3, header(place, OWNER))
    assert book.end_lease(2, lease) == [place]
    assert book.expired == 1
