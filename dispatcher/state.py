"""What a dispatcher knows of each request: a cache that says when it may be believed, and checked reads."""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from broker.facts import Facts
from broker.pull import Delivery
from broker.subjects import parse_run
from cornstalk.graph import State
from cornstalk.messages import FACTS, Accepted, Fact, Finish, Malformed, decode

log = logging.getLogger(__name__)

MAX_REQUESTS: Final = 8192
MAX_BYTES: Final = 16 << 20
"""Encoded bytes of the facts kept; decoded they take a few times that."""
SLIM: Final = 512
"""What a finished request counts for, once only its end is kept."""


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
    Bounded by requests and bytes; the request not used for longest goes first.
    """

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._nbytes = 0
        self._next = 0  # consumer sequence that continues the run
        self._start: int | None = None  # RUNS sequence from which everything was seen
        self._newest = 0  # highest RUNS sequence delivered for the first time
        self.reads = 0

    def follow(self, delivery: Delivery) -> None:
        """Counts a delivery. Must be called for each one, in order of arrival."""
        new = delivery.delivered == 1
        recreated = new and delivery.stream_seq <= self._newest  # a new consumer counts from 1 again
        if delivery.consumer_seq != self._next or recreated:
            self._start = None
        self._next = delivery.consumer_seq + 1
        if new:
            self._newest = delivery.stream_seq
            if self._start is None:
                self._start = delivery.stream_seq

    def fold(self, request: str, fact: Fact, delivery: Delivery) -> State | None:
        """Adds a delivered fact; the request's state if nothing can be missing from it, else None: read."""
        entry = self._entries.get(request)
        if entry is None:
            entry = self._entries[request] = _Entry(since=self._newest + 1)
            if isinstance(fact, Accepted):
                entry.upto = delivery.stream_seq  # nothing of a request is older
        entry.state.add(fact, delivery.stream_seq)
        self._grow(request, entry, len(delivery.data))
        whole = self._start is not None and entry.upto >= max(self._start, entry.since) - 1
        return self._slimmed(request, entry) if whole else None

    async def read(self, request: str, seq: int) -> State:
        """The state from a read that holds sequence `seq`, or all that is left if that was purged.

        Raises ReadTimeout, NewerVersion. Another fact of the request that does not decode is left to its own delivery.
        """
        self.reads += 1
        log_ = await self._facts.read(request, containing=seq)
        entry = self._entries.setdefault(request, _Entry(since=self._newest + 1))
        for stored in log_.messages:
            try:
                fact = decode(FACTS[parse_run(stored.subject).kind], stored.data)
            except (Malformed, ValueError) as error:
                log.warning("a fact of %s is left out: %s", request, type(error).__name__)
                continue
            entry.state.add(fact, stored.seq)  # merged, never replaced: the cache went on during the read
        entry.upto = max(entry.upto, log_.upto)
        self._grow(request, entry, sum(len(m.data) for m in log_.messages) - entry.nbytes)
        return self._slimmed(request, entry)

    def forget(self, request: str) -> None:
        """A fact could not be folded: what is known of the request has a gap from here on."""
        if (entry := self._entries.pop(request, None)) is not None:
            self._nbytes -= entry.nbytes

    def _slimmed(self, request: str, entry: _Entry) -> State:
        """The whole state; of a finished request only its frame is kept for events that come late."""
        state = entry.state
        if state.finish is not None and state.nodes:
            slim = State()
            if state.accepted is not None:
                slim.add(state.accepted)
            slim.add(Finish(status=state.finish.status), state.seq)
            entry.state = slim
            self._grow(request, entry, SLIM - entry.nbytes)
        return state

    def _grow(self, request: str, entry: _Entry, nbytes: int) -> None:
        entry.nbytes += nbytes
        self._nbytes += nbytes
        self._entries.move_to_end(request)
        while len(self._entries) > MAX_REQUESTS or (self._nbytes > MAX_BYTES and len(self._entries) > 1):
            _, oldest = self._entries.popitem(last=False)
            self._nbytes -= oldest.nbytes
