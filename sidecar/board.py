"""Leases without a round trip: words of shared memory, each written by one side alone and read by another.

    live   the daemon's board    the block that lives in a slot, until it is released     read by readers
    seal   the producer's arena  the block at a place, and a digest of its Ref            read by readers
    pin    the reader's page     the block that it reads in a slot                        read by the daemon

A reader pins and then looks whether the block lives; the daemon ends its life and then looks who pins it. With a full
fence between the two steps of each, at least one sees the other: either the reader takes its pin back and asks the
daemon, or the daemon waits for it. Giving back is the same the other way round: the reader unpins and then looks
whether it still lives. If it does not, the daemon may have seen the pin, and is told.

Nobody can spoil what is another's: a reader cannot end a life, a producer cannot lengthen one, and a page that holds
nonsense holds back memory only until its connection ends. A block dies for good: its number is never used again, so
what is left in a slot, a seal or the page of a process that died names nothing.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import platform
import sys
import threading
from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from typing import Final, Protocol

import numpy as np

from sidecar import arena
from sidecar.allocator import UNIT
from sidecar.messages import Tensor, encode

BYTES: Final = 32768
"""Of a board or page. A block's slot is its number modulo their words; for the elder of two the daemon is asked."""
AVAILABLE: Final = platform.machine() == "x86_64" and sys.implementation.name == "cpython"
"""Needs aligned 8-byte loads and stores that are never torn, in program order but for a store before a load.

Elsewhere nothing is sealed, so each reader asks the daemon.
"""


class Words(Protocol):
    """Aligned words of 8 bytes."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> int: ...

    def __setitem__(self, index: int, value: int, /) -> None: ...


_lock: Final = threading.Lock()


def fence() -> None:
    """No load after it is done before a store that stands before it: to take a lock is a locked instruction."""
    with _lock:
        pass


def digest(block: int, tensor: Tensor) -> int:
    """Names a commit: the block and every field of its header."""
    return int.from_bytes(blake2b(encode((block, tensor)), digest_size=8).digest(), "little")


def seal(words: Words, offset: int, block: int, digest: int) -> None:
    """The block is whole, and the daemon will hear so: readers need not ask. `words` are those of its arena."""
    if AVAILABLE:
        at = 2 * (offset // UNIT)
        words[at + 1] = digest
        fence()
        words[at] = block


def sealed(words: Words, tensor: Tensor) -> int:
    """The block that was committed as exactly `tensor`, dead or alive; 0 if the daemon has to be asked."""
    if not isinstance(tensor.offset, int) or not 0 <= tensor.offset < len(words) // 2 * UNIT:
        return 0  # a Ref may hold anything
    at = 2 * (tensor.offset // UNIT)
    block = words[at]
    return block if block and words[at + 1] == digest(block, tensor) else 0


class Pins:
    """A reader's page. A pin that `pin` refused, and one of which `unpin` says so, is news for the daemon."""

    def __init__(self, page: Words, live: Words, fence: Callable[[], None] = fence) -> None:
        self._page, self._live, self._fence = page, live, fence
        self._counts: Counter[int] = Counter()

    def pin(self, block: int) -> bool:
        """True: the block is whole and stays as it is until as many `unpin`."""
        slot = block % len(self._page)
        if self._page[slot] not in (0, block):
            return False
        self._page[slot] = block
        self._fence()
        if self._live[slot] == block:
            self._counts[block] += 1
            return True
        if block not in self._counts:
            self._page[slot] = 0
        return False

    def unpin(self, block: int) -> bool:
        """True: the daemon may wait for this."""
        self._counts[block] -= 1
        if self._counts[block]:
            return False
        del self._counts[block]
        slot = block % len(self._page)
        self._page[slot] = 0
        self._fence()
        return self._live[slot] != block


class Board:
    """The daemon's end: one life of it. Pages of readers are looked at until `forget`."""

    def __init__(self, live: Words, fence: Callable[[], None] = fence) -> None:
        self._live, self._fence = live, fence
        self._pages: dict[int, Words] = {}

    @property
    def pins(self) -> int:
        """Blocks that readers pin, each reader by itself."""
        return sum(int(np.count_nonzero(np.asarray(page))) for page in self._pages.values())

    def enter(self, peer: int, page: Words) -> None:
        """From now on `peer` may pin."""
        self._pages[peer] = page

    def forget(self, peer: int) -> None:
        """Its connection is over, and with it its pins."""
        self._pages.pop(peer, None)

    def show(self, block: int) -> None:
        self._live[block % len(self._live)] = block

    def hide(self, block: int) -> list[int]:
        """Nobody can pin the block any more; the peers that do."""
        slot = block % len(self._live)
        if self._live[slot] == block:
            self._live[slot] = 0
        self._fence()
        return [peer for peer, page in self._pages.items() if page[slot] == block]

    def pinned(self, peer: int, block: int) -> bool:
        page = self._pages.get(peer)
        return page is not None and page[block % len(page)] == block


def make_board() -> tuple[Words, int]:
    """The words for the daemon, and a read-only descriptor of them for readers. Raises OSError."""
    words, descriptor = _make()
    return words, arena.seal(descriptor)


def make_page() -> tuple[Words, int]:
    """The words of a new page for the daemon, and a descriptor with which its reader can write, but not shrink it.

    Raises OSError.
    """
    words, descriptor = _make()
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return words, descriptor


def words_of(descriptor: int, *, writable: bool) -> Words:
    """A board or page that the daemon has sent. Takes over the descriptor. Raises OSError, ValueError."""
    try:
        return _map(descriptor, writable=writable)
    finally:
        os.close(descriptor)


def _make() -> tuple[Words, int]:
    descriptor = arena.new("cornstalk-board", BYTES)
    try:
        return _map(descriptor, writable=True), descriptor
    except BaseException:
        os.close(descriptor)
        raise


def _map(descriptor: int, *, writable: bool) -> Words:
    mapping = mmap.mmap(descriptor, BYTES, prot=mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0))
    return memoryview(mapping).cast("Q")
