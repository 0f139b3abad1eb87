"""What a dispatcher knows of each request: a cache that says when it may be believed, and checked reads."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Final

from broker.facts import Facts
from broker.pull import Delivery
from broker.subjects import parse_run
from cornstalk.graph import State
from cornstalk.messages import FACTS, Accepted, Fact, Finish, Malformed, decode
from dispatcher.run import Run

log = logging.getLogger(__name__)

MAX_REQUESTS: Final = 8192
MAX_BYTES: Final = 16 << 20
"""Encoded bytes of the facts kept; decoded they take a few times that."""
SLIM: Final = 512
"""What a finished request counts for, once only its end is kept."""
ENDED: Final = 512
"""Finished requests that are kept, for events that come late: those of a second or a few."""


@dataclass(slots=True)
class _Entry:
    since: int  # RUNS sequence from which each delivered fact of the request was folded
    upto: int = 0  # RUNS sequence up to which no fact of the request is missing
    state: State = field(default_factory=State)
    nbytes: int = 0


class StateCache:
    """States of requests, gap-free or not used: a cache may deny readiness only if it holds the trigger and no gap.

    The consumer counts its deliveries. While this process sees that count without holes, it has seen every fact stored
    since the first new one of the unbroken run. A request is known whole if its `accepted`, or its last read, reaches
    into that run and to where its entry began; else it is read. Memory only: a crash costs reads, not right decisions.
    Bounded by requests and bytes; the request not used for longest goes first. Of finished ones the last few are kept.
    """

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._ended: deque[str] = deque()
        self._nbytes = 0
        self._run = Run()
        self._lost = 0  # RUNS sequence up to which delivered facts may have been forgotten
        self.reads = 0

    def fold(self, request: str, fact: Fact, delivery: Delivery) -> None:
        """Adds a delivered fact. Must be called as deliveries arrive, each once."""
        self._run.follow(delivery)
        entry = self._entries.get(request)
        if entry is None:
            entry = self._entries[request] = _Entry(since=self._lost + 1)
        if isinstance(fact, Accepted):
            entry.upto = max(entry.upto, delivery.stream_seq)  # nothing of a request is older
        entry.state.add(fact, delivery.stream_seq)
        self._grow(request, entry, len(delivery.data))

    async def whole(self, request: str, delivery: Delivery) -> State:
        """The state of a request with nothing missing up to a delivery. Reads only if the cache cannot prove it.

        Raises ReadTimeout, NewerVersion.
        """
        if self._run.has_holes(delivery):
            await asyncio.sleep(0)  # two pulls hand over their messages in turn: the rest is here already
        self._run.give_up_holes(delivery)
        entry, start = self._entries.get(request), self._run.start
        if entry is not None and start is not None and entry.upto >= max(start, entry.since) - 1:
            return entry.state
        return await self.read(request, delivery.stream_seq)

    async def read(self, request: str, seq: int) -> State:
        """The state from a read that holds sequence `seq`, or all that is left if that was purged.

        Raises ReadTimeout, NewerVersion. Another fact of the request that does not decode is left to its own delivery.
        """
        self.reads += 1
        log_ = await self._facts.read(request, containing=seq)
        entry = self._entries.setdefault(request, _Entry(since=self._lost + 1))
        for stored in log_.messages:
            try:
                fact = decode(FACTS[parse_run(stored.subject).kind], stored.data)
            except (Malformed, ValueError) as error:
                log.warning("a fact of %s is left out: %s", request, type(error).__name__)
                continue
            entry.state.add(fact, stored.seq)  # merged, never replaced: the cache went on during the read
        entry.upto = max(entry.upto, log_.upto)
        self._grow(request, entry, sum(len(m.data) for m in log_.messages) - entry.nbytes)
        return entry.state

    def skip(self, request: str, delivery: Delivery) -> None:
        """A delivery that cannot be folded: what is known of its request has a gap from here on."""
        self._run.follow(delivery)
        self._lost = self._run.newest
        if (entry := self._entries.pop(request, None)) is not None:
            self._nbytes -= entry.nbytes

    def finished(self, request: str) -> None:
        """The end of a request has been handled: only its frame is kept, for events that come late.

        Not before: a read for an older fact may hold the end already, and what follows from it needs the whole state.
        """
        entry = self._entries.get(request)
        if entry is None or entry.state.finish is None:
            return
        slim = State()
        if entry.state.accepted is not None:
            slim.add(entry.state.accepted)
        slim.add(Finish(status=entry.state.finish.status), entry.state.seq)
        entry.state = slim
        self._grow(request, entry, SLIM - entry.nbytes)
        self._ended.append(request)
        if len(self._ended) > ENDED:
            self._forget(self._ended.popleft())

    def _forget(self, request: str) -> None:
        entry = self._entries.get(request)
        if entry is not None and entry.state.finish is not None:
            self._drop(self._entries.pop(request))

    def _grow(self, request: str, entry: _Entry, nbytes: int) -> None:
        entry.nbytes += nbytes
        self._nbytes += nbytes
        self._entries.move_to_end(request)
        while len(self._entries) > MAX_REQUESTS or (self._nbytes > MAX_BYTES and len(self._entries) > 1):
            self._drop(self._entries.popitem(last=False)[1])

    def _drop(self, entry: _Entry) -> None:
        self._nbytes -= entry.nbytes
        self._lost = max(self._lost, entry.state.seq)
