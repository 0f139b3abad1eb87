"""Who owns a block and who reads it: the state machine of design section 7. Pure: no clock, no memory, no socket.

    granted --commit--> committed --release, drop, expiry--> released --last lease ends--> free
       \\--abort, death of its producer--> free

A granted block belongs to a connection, a committed one to (request, node, generation, attempt): it survives its
producer. Any number of readers may lease a committed block, again after a crash; a lease ends with its connection. A
released block gives no new lease and is freed when none is open: memory that somebody reads is never given out again.

Memory may have more owners than one (`share`): each has a block of its own, and the last one that goes frees it.

A lease without a round trip is a pin (`sidecar.board`): it is looked for when a block is released, and known from then
on. Producers say by themselves that a block can be read, so no block, committed or not, is freed under a pin.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from sidecar.board import Board
from sidecar.dtypes import nbytes_of
from sidecar.errors import Denied, Gone, StaleEpoch
from sidecar.messages import Owner, Tensor

LONGEST: Final = 24 * 3600 + 120.0
"""Seconds a block may live: a deadline is at most 24 h, and 60 s are added to it."""


class Place(NamedTuple):
    """Memory that came free."""

    arena: int
    offset: int


@dataclass(slots=True)
class _Block:
    id: int
    producer: int
    place: Place
    size: int
    tensor: Tensor | None = None  # None while granted
    expires: float = 0.0
    released: bool = False
    leases: set[int] = field(default_factory=set)
    pinned: set[int] = field(default_factory=set)  # peers, once it is released

    @property
    def free(self) -> bool:
        return self.released and not self.leases and not self.pinned


@dataclass(slots=True)
class _Peer:
    blocks: set[int] = field(default_factory=set)
    granted: Counter[int] = field(default_factory=Counter)  # size -> blocks
    leases: dict[int, int] = field(default_factory=dict)  # lease -> block
    pinned: set[int] = field(default_factory=set)  # released blocks


class Book:
    """All blocks of one life of a daemon. Methods that free memory return the places, each exactly once.

    A peer is a connection, named by a number that is never used again.
    """

    def __init__(self, host: str, epoch: str, board: Board) -> None:
        self.host, self.epoch = host, epoch
        self._board = board
        self.granted_bytes = self.committed_bytes = self.expired = 0
        self._ids = itertools.count(1)
        self._blocks: dict[int, _Block] = {}
        self._committed_as: dict[Tensor, int] = {}
        self._owners: Counter[Place] = Counter()  # of committed blocks
        self._peers: dict[int, _Peer] = defaultdict(_Peer)
        self._of_request: dict[str, set[int]] = defaultdict(set)
        self._expiry: list[tuple[float, int]] = []

    @property
    def blocks(self) -> int:
        """Committed blocks; memory with several owners counts for each."""
        return sum(len(blocks) for blocks in self._of_request.values())

    @property
    def leases(self) -> int:
        return sum(len(peer.leases) for peer in self._peers.values()) + self._board.pins

    def grant(self, peer: int, place: Place, size: int) -> int:
        """A new block at a free place; its number."""
        block = _Block(next(self._ids), peer, place, size)
        self._add(block)
        self._board.show(block.id)
        self._count_granted(block, 1)
        return block.id

    def granted(self, peer: int) -> Counter[int]:
        """How many granted blocks of which size a connection has, those that it writes included."""
        return self._peers[peer].granted if peer in self._peers else Counter()

    def abort(self, peer: int, number: int) -> list[Place]:
        """Raises Denied unless `peer` was granted the block and has not committed it."""
        return self._release([self._granted(peer, number)])

    def commit(self, peer: int, number: int, tensor: Tensor, *, expires: float, hold: bool, now: float) -> list[Place]:
        """The block is whole. Raises Denied, and leaves it granted, if the header does not fit the block.

        `hold` opens a lease of the producer whose number is that of the block. One that has expired is freed.
        """
        block = self._granted(peer, number)
        self._check(block, tensor)
        if not math.isfinite(expires):
            raise Denied("expires is not a time")
        self._count_granted(block, -1)
        self.committed_bytes += block.size
        self._own(block, tensor, min(expires, now + LONGEST))
        if hold:
            self._open(peer, number, block)
        return self.expire(now)

    def share(self, peer: int, tensor: Tensor, owner: Owner, expires: float, now: float) -> Tensor:
        """The same memory as a block of `owner` too, committed by `peer`: it is free when no owner needs it.

        Raises StaleEpoch or Gone. Its readers ask the daemon, for the seal at its place names the first owner.
        """
        block = self._known(tensor)
        assert block.tensor is not None
        theirs = msgspec.structs.replace(tensor, **msgspec.structs.asdict(owner))
        known = self._blocks.get(self._committed_as.get(theirs, 0))
        if known is None or known.released:
            shared = _Block(next(self._ids), peer, block.place, block.size)
            self._add(shared)
            self._own(shared, theirs, min(expires, now + LONGEST))
        return theirs

    def owners(self, tensor: Tensor) -> int:
        """How many own the memory of a tensor."""
        return self._owners[Place(tensor.arena, tensor.offset)]

    def lease(self, peer: int, tensor: Tensor) -> int:
        """The number of a new lease. Raises StaleEpoch or Gone; the Ref must be the committed one in every field."""
        block = self._known(tensor)
        lease = next(self._ids)
        self._open(peer, lease, block)
        return lease

    def end_lease(self, peer: int, lease: int) -> list[Place]:
        """Raises Denied for a lease that `peer` does not have."""
        number = self._peers[peer].leases.pop(lease, None)
        if number is None:
            raise Denied(f"lease {lease} is not open")
        block = self._blocks[number]
        block.leases.discard(lease)
        return self._free_if_over([block])

    def unpinned(self, peer: int, number: int) -> list[Place]:
        """The peer took a pin back. Nothing, if it was not seen or is there again."""
        block = self._blocks.get(number)
        if block is None or peer not in block.pinned or self._board.pinned(peer, number):
            return []
        block.pinned.discard(peer)
        self._peers[peer].pinned.discard(number)
        return self._free_if_over([block])

    def release(self, request: str, node: str | None = None, gen: int | None = None) -> list[Place]:
        """Nobody will need the request (the generation) any more. Granted blocks are not touched."""
        return self._release(
            block
            for block in self._committed(request)
            if node is None or (block.tensor is not None and (block.tensor.node, block.tensor.gen) == (node, gen))
        )

    def drop(self, peer: int, owner: Owner) -> list[Place]:
        """What `peer` committed for an attempt that lost."""
        return self._release(
            block
            for block in self._committed(owner.request)
            if block.producer == peer
            and block.tensor is not None
            and (block.tensor.node, block.tensor.gen, block.tensor.attempt) == (owner.node, owner.gen, owner.attempt)
        )

    def expire(self, now: float) -> list[Place]:
        """Releases what is past its time. One that is still leased is freed by its last reader, never under it."""
        due = []
        while self._expiry and self._expiry[0][0] <= now:
            block = self._blocks.get(heapq.heappop(self._expiry)[1])
            if block is not None and not block.released:
                self.expired += 1
                due.append(block)
        return self._release(due)

    def close(self, peer: int) -> list[Place]:
        """The connection ended: its leases end, its granted blocks are released, its committed ones live on."""
        self._board.forget(peer)
        gone = self._peers.pop(peer, None)
        if gone is None:
            return []
        read = [self._blocks[number] for number in (*gone.leases.values(), *gone.pinned)]
        for block in read:
            block.leases -= gone.leases.keys()
            block.pinned.discard(peer)
        granted = [block for number in gone.blocks if (block := self._blocks[number]).tensor is None]
        self._retire(granted)
        return self._free_if_over([*read, *granted])

    def _add(self, block: _Block) -> None:
        self._blocks[block.id] = block
        self._peers[block.producer].blocks.add(block.id)

    def _own(self, block: _Block, tensor: Tensor, expires: float) -> None:
        block.tensor, block.expires = tensor, expires
        self._committed_as[tensor] = block.id
        self._owners[block.place] += 1
        self._of_request[tensor.request].add(block.id)
        heapq.heappush(self._expiry, (expires, block.id))

    def _known(self, tensor: Tensor) -> _Block:
        if tensor.epoch != self.epoch:
            raise StaleEpoch("the sidecar that held this block has died")
        block = self._blocks.get(self._committed_as.get(tensor, 0))
        if block is None or block.released:
            raise Gone("the block is freed, or was never committed")
        return block

    def _granted(self, peer: int, number: int) -> _Block:
        block = self._blocks.get(number)
        if block is None or block.producer != peer or block.tensor is not None or block.released:
            raise Denied(f"block {number} is not granted to this connection")
        return block

    def _check(self, block: _Block, tensor: Tensor) -> None:
        if (tensor.host, tensor.epoch) != (self.host, self.epoch) or (tensor.arena, tensor.offset) != block.place:
            raise Denied("the header names another block")
        if tensor.gen < 0 or tensor.index < 0:
            raise Denied("negative generation or index")
        if tensor.nbytes != nbytes_of(tensor.dtype, tensor.shape) or tensor.nbytes > block.size:
            raise Denied("nbytes, shape and block do not agree")

    def _committed(self, request: str) -> list[_Block]:
        return [self._blocks[number] for number in self._of_request.get(request, ())]

    def _count_granted(self, block: _Block, by: int) -> None:
        self.granted_bytes += by * block.size
        if block.producer in self._peers:
            granted = self._peers[block.producer].granted
            granted[block.size] += by
            if not granted[block.size]:
                del granted[block.size]

    def _open(self, peer: int, lease: int, block: _Block) -> None:
        block.leases.add(lease)
        self._peers[peer].leases[lease] = block.id

    def _release(self, blocks: Iterable[_Block]) -> list[Place]:
        released = list(blocks)
        self._retire(released)
        return self._free_if_over(released)

    def _retire(self, blocks: list[_Block]) -> None:
        for block in blocks:
            if not block.released:
                block.released = True
                for peer in self._board.hide(block.id):
                    block.pinned.add(peer)
                    self._peers[peer].pinned.add(block.id)

    def _free_if_over(self, blocks: list[_Block]) -> list[Place]:
        over = {block.id: block for block in blocks if block.free}
        return [place for block in over.values() if (place := self._free(block)) is not None]

    def _free(self, block: _Block) -> Place | None:
        """Its memory, unless somebody else owns it too."""
        del self._blocks[block.id]
        if block.producer in self._peers:
            self._peers[block.producer].blocks.discard(block.id)
        if block.tensor is None:
            self._count_granted(block, -1)
            return block.place
        if self._committed_as.get(block.tensor) == block.id:
            del self._committed_as[block.tensor]
        of_request = self._of_request[block.tensor.request]
        of_request.discard(block.id)
        if not of_request:
            del self._of_request[block.tensor.request]
        self._owners[block.place] -= 1
        if self._owners[block.place]:
            return None
        del self._owners[block.place]
        self.committed_bytes -= block.size
        return block.place
