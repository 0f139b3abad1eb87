"""Memory shared by processes as x86 gives it to them, and processes that go on by single accesses to it.

A store waits in a buffer of its process, in order, until it drains; a load sees that buffer first; a fence drains it.
A call stops before every access, so that a test chooses the order of all of them.
"""

from __future__ import annotations

import copy
import itertools
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar

from sidecar.blocks import Book, Place
from sidecar.board import Board, Pins
from sidecar.messages import Tensor

SLOTS = 2
SIZE = 4096
PRODUCER = 1

Actor = TypeVar("Actor")


class Stopped(Exception):
    """Raised before an access whose time has not come."""


class Process(Generic[Actor]):
    """One call of `actor` at a time. A step does the call again from its beginning: old accesses come out of a log.

    What else a call does it must do after its last access.
    """

    actor: Actor

    def __init__(self) -> None:
        self.done = True
        self.stores: deque[tuple[list[int], int, int]] = deque()
        self._log: list[Any] = []
        self._replayed = self._allowed = 0

    def begin(self, work: Callable[[Actor], object]) -> None:
        """Runs to the first access."""
        assert self.done
        self.done, self._work, self._before, self._log = False, work, self.actor, []
        self._run(0)

    def step(self) -> None:
        """One access, and on to the next or the end of the call."""
        self._run(len(self._log) + 1)

    def finish(self) -> None:
        while not self.done:
            self.step()
        self.drain_all()

    def kill(self) -> None:
        """Before its next access. What the processor has taken it stores."""
        self.done = True
        self.drain_all()

    def drain(self) -> None:
        """The oldest store becomes visible."""
        words, index, value = self.stores.popleft()
        words[index] = value

    def drain_all(self) -> None:
        while self.stores:
            self.drain()

    def fence(self) -> None:
        self.access(self.drain_all)

    def no_fence(self) -> None:
        """For what would go wrong."""

    def access(self, do: Callable[[], Any]) -> Any:
        if self._replayed == len(self._log):
            if len(self._log) == self._allowed:
                raise Stopped
            self._log.append(do())
        self._replayed += 1
        return self._log[self._replayed - 1]

    def _run(self, allowed: int) -> None:
        self._replayed, self._allowed = 0, allowed
        self.actor = copy.deepcopy(self._before)
        try:
            self._work(self.actor)
        except Stopped:
            return
        self.done = True

    def __deepcopy__(self, _: object) -> Self:
        return self


class View:
    """What one process sees of some words."""

    def __init__(self, words: list[int], process: Process[Any]) -> None:
        self._words, self._process = words, process

    def __len__(self) -> int:
        return len(self._words)

    def __getitem__(self, index: int) -> int:
        return int(self._process.access(lambda: self._load(index)))

    def __setitem__(self, index: int, value: int) -> None:
        self._process.access(lambda: self._process.stores.append((self._words, index, value)))

    def _load(self, index: int) -> int:
        for words, at, value in reversed(self._process.stores):
            if words is self._words and at == index:
                return value
        return self._words[index]

    def __deepcopy__(self, _: object) -> Self:
        return self


class Reader:
    """One connection. `reads`: the blocks at whose memory it may look now, each as often as it has pinned it."""

    def __init__(self, world: World, peer: int) -> None:
        self.peer = peer
        self.process: Process[Pins] = Process()
        self.reads: list[int] = []
        self.news: deque[int] = deque()  # Unpinned, on its way to the daemon
        self.page = [0] * SLOTS
        self._world = world
        view, live = View(self.page, self.process), View(world.live, self.process)
        self.process.actor = Pins(view, live, self.process.fence if world.fences else self.process.no_fence)

    def pin(self, block: int) -> None:
        def work(pins: Pins) -> None:
            if pins.pin(block):
                assert block not in self._world.freed, "a reader got memory that was given out again"
                self.reads.append(block)
            else:
                self._tell(block)

        self.process.begin(work)

    def unpin(self, block: int) -> None:
        def work(pins: Pins) -> None:
            if pins.unpin(block):
                self._tell(block)

        self.reads.remove(block)
        self.process.begin(work)

    def _tell(self, block: int) -> None:
        self.process.drain_all()  # a system call
        self.news.append(block)


class World:
    """A daemon, its blocks and their readers. The daemon does one thing at a time."""

    def __init__(self, *, fences: bool = True) -> None:
        self.fences = fences
        self.live = [0] * SLOTS
        self.daemon: Process[tuple[Book, Board]] = Process()
        board = Board(View(self.live, self.daemon), self.daemon.fence if fences else self.daemon.no_fence)
        self.daemon.actor = Book("h", "e", board), board
        self.blocks: list[int] = []
        self.released: set[int] = set()
        self.freed: set[int] = set()
        self.readers: list[Reader] = []
        self.dead: deque[Reader] = deque()  # of whom the daemon does not know
        self._committed: set[int] = set()
        self._peers = itertools.count(PRODUCER + 1)

    @property
    def unreleased(self) -> list[int]:
        return [block for block in self.blocks if block not in self.released]

    def connect(self) -> None:
        reader = Reader(self, next(self._peers))
        self.readers.append(reader)
        self.daemon.begin(lambda daemon: daemon[1].enter(reader.peer, View(reader.page, self.daemon)))

    def die(self, reader: Reader) -> None:
        reader.process.kill()
        self.readers.remove(reader)
        self.dead.append(reader)

    def bury(self) -> None:
        peer = self.dead.popleft().peer
        self.daemon.begin(lambda daemon: self._take(daemon[0].close(peer)))

    def hear(self, reader: Reader) -> None:
        peer, block = reader.peer, reader.news.popleft()
        self.daemon.begin(lambda daemon: self._take(daemon[0].unpinned(peer, block)))

    def grant(self, *, commit: bool) -> None:
        place = Place(1, SIZE * len(self.blocks))

        def work(daemon: tuple[Book, Board]) -> None:
            block = daemon[0].grant(PRODUCER, place, SIZE)
            if commit:
                tensor = Tensor("r", str(block), 0, "a", "out", 0, "h", "e", *place, 16, "float32", (4,))
                daemon[0].commit(PRODUCER, block, tensor, expires=1e9, hold=False, now=0.0)
                self._committed.add(block)
            self.blocks.append(block)

        self.daemon.begin(work)

    def release(self, block: int) -> None:
        """By its owner, or as one that was never committed."""
        self.released.add(block)
        if block in self._committed:
            self.daemon.begin(lambda daemon: self._take(daemon[0].release("r", str(block), 0)))
        else:
            self.daemon.begin(lambda daemon: self._take(daemon[0].abort(PRODUCER, block)))

    def settle(self) -> None:
        """Everybody ends what it does, readers give back, the daemon hears all and releases all."""
        for reader in self.readers:
            reader.process.finish()
            while reader.reads:
                reader.unpin(reader.reads[0])
                reader.process.finish()
        self.daemon.finish()
        for block in self.unreleased:
            self.release(block)
            self.daemon.finish()
        while self.dead:
            self.bury()
            self.daemon.finish()
        for reader in self.readers:
            while reader.news:
                self.hear(reader)
                self.daemon.finish()

    def _take(self, places: list[Place]) -> None:
        for place in places:
            block = self.blocks[place.offset // SIZE]
            assert block not in self.freed, "freed twice"
            self.freed.add(block)
            assert all(block not in reader.reads for reader in self.readers), "given out again under a reader"
