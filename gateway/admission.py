"""Admission: a request is refused at the door, never in the middle."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, deque
from typing import Final

import msgspec

from broker.connection import Broker, Subscription
from broker.errors import Rejected
from broker.requests import Message
from broker.subjects import CHUNKS, DRIVE, LANES, RUNS, SIDECAR_SHARE, UPLOADS
from broker.topology import Backlog, backlog, share_in_use
from cornstalk.errors import Refused
from cornstalk.messages import Lane
from gateway.looks import Looks
from sidecar.messages import Share

FULL: Final = 0.5
"""Share of a lane's max_msgs at which admission stops (design rule 9); the rest is for requests that are under way."""
STREAMS: Final = (RUNS, CHUNKS, UPLOADS)
"""Streams that every request writes to; a durable one writes to DRIVE as well."""
SHARE: Final[dict[Lane, float]] = {"interactive": 0.75, "batch": 0.5}
"""Share of these in use at which a lane is let in no more: what is under way needs room to end."""
PATIENCE: Final = 0.5
"""Share of its time to the deadline that a request may stand in one queue: the rest is for what it came for."""
SPACE: Final = 0.7
"""Share of a sidecar's arenas in use at which admission stops (design section 7)."""
WINDOW: Final = 30.0
"""Seconds of looks from which the throughput of a queue is taken, or LATELY if in that ENOUGH items ended."""
LATELY: Final = 8.0
"""Seconds in which items that end together, as equal ones do, no longer count as faster or slower ones."""
ENOUGH: Final = 10
UNKNOWN: Final = 5.0
"""Seconds until a client tries again when nothing ended within the window: nobody knows when there will be room."""
LONGEST: Final = 60.0
"""Seconds that a client is told to stay away at most."""
SHARE_TTL: Final = 5.0
"""Seconds after which a sidecar that says nothing no longer counts."""

_share = msgspec.msgpack.Decoder(Share)


class Admission:
    """Looks at queue depths, streams and sidecar space, each cached for a moment, in which those let in are counted.

    Soft state only.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._in_use = Looks(lambda stream: share_in_use(broker, stream))
        self._depths = Looks(self._depth)
        self._history: dict[str, deque[tuple[float, Backlog]]] = {}  # of each component, the newest last
        self._let_in: Counter[tuple[str, Lane]] = Counter()  # requests since the last look: at least an item each
        self._shares: dict[str, tuple[float, float]] = {}  # host -> (when, share in use)
        self._subscription: Subscription | None = None

    async def start(self) -> None:
        self._subscription = await self._broker.subscribe_core(SIDECAR_SHARE, self._hear)

    async def close(self) -> None:
        if self._subscription is not None:
            await self._subscription.close()

    async def check(
        self, components: tuple[str, ...], lane: Lane, within: float = math.inf, durable: bool = False
    ) -> None:
        """Raises Refused, with the seconds after which trying again makes sense. `within`: seconds to the deadline."""
        self._check_space()
        streams = (*STREAMS, DRIVE) if durable else STREAMS
        in_use, depths = await asyncio.gather(self._in_use.at(streams), self._depths.at(components))
        for stream, used in zip(streams, in_use, strict=True):
            if used > SHARE[lane]:
                raise Refused(f"{stream} is {used:.0%} full, and what is under way needs the rest", retry_after=UNKNOWN)
        for component, depth in zip(components, depths, strict=True):
            if depth is not None:
                self._check_depth(component, lane, depth, within)
        self._let_in.update((component, lane) for component in components)

    def _check_depth(self, component: str, lane: Lane, depth: Backlog, within: float) -> None:
        held, most = _held(depth, lane) + self._let_in[component, lane], FULL * depth.max_msgs
        if held > most:
            raise Refused(
                f"{component} has {held} items waiting and running, over half of its limit of {depth.max_msgs}",
                retry_after=self._drain_time(component, lane, held - most),
            )
        pace = self._pace(component, lane)
        if pace is not None and held * pace > PATIENCE * within:
            raise Refused(
                f"{component} would take {held * pace:.0f} s for the {held} items before this one, and the deadline is"
                f" in {within:.0f} s",
                retry_after=min(LONGEST, held * pace - PATIENCE * within - self._age(component)),
            )

    def _check_space(self) -> None:
        now = time.monotonic()
        shares = [used for when, used in self._shares.values() if now - when < SHARE_TTL]
        if shares and min(shares) > SPACE:
            raise Refused(f"the sidecars' tensor space is {min(shares):.0%} full", retry_after=1.0)

    async def _depth(self, component: str) -> Backlog | None:
        try:
            depth = await backlog(self._broker, component)
        except Rejected:
            return None  # no queue yet: the operator makes it, and the dispatcher retries until it is there
        for lane in LANES:
            self._let_in.pop((component, lane), None)
        looks = self._history.setdefault(component, deque())
        looks.append((time.monotonic(), depth))
        while looks[0][0] < looks[-1][0] - WINDOW:
            looks.popleft()
        return depth

    def _drain_time(self, component: str, lane: Lane, items: float) -> float:
        """Seconds until `items` have ended, at the pace of those that ended lately."""
        pace = self._pace(component, lane)
        return UNKNOWN if pace is None else min(LONGEST, items * pace - self._age(component))

    def _pace(self, component: str, lane: Lane) -> float | None:
        """Seconds for each item that ended lately, while others waited and some ran; None if that cannot be told.

        Where items wait and none runs there is no worker: a component at zero, whose first one is just starting.
        """
        until, last = self._history[component][-1]
        seconds, ended = 0.0, 0
        for since, depth in reversed(self._history[component]):
            if not (depth.pending[lane] and depth.in_flight[lane]) or (ended >= ENOUGH and seconds >= LATELY):
                break
            seconds, ended = until - since, last.ended[lane] - depth.ended[lane]
        return seconds / ended if ended > 0 else None

    def _age(self, component: str) -> float:
        """Seconds since the last look."""
        return time.monotonic() - self._history[component][-1][0]

    async def _hear(self, message: Message) -> None:
        try:
            share = _share.decode(message.data)
        except msgspec.MsgspecError:
            return  # not a sidecar of this release
        if share.total > 0:
            self._shares[share.host] = (time.monotonic(), 1.0 - share.free / share.total)


def _held(depth: Backlog, lane: Lane) -> int:
    """Items that count against max_msgs: a running one leaves the queue with its ack."""
    return depth.pending[lane] + depth.in_flight[lane]
