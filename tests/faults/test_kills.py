"""Random kill -9 of any process while requests run: each answer right, none lost, none doubled, nothing left behind.

CORNSTALK_SOAK=long (`make soak`) is the same for 1,000 requests. CORNSTALK_SEED repeats a run's choice of victims.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from broker.reads import pages
from broker.subjects import ALL_USAGE, USAGE
from cornstalk.messages import decode
from cornstalk.usage import RequestUsage
from tests.e2e.apps import APPS, chain, one
from tests.faults.apps import FAULT_APPS, lineage, turns
from tests.faults.client import ask
from tests.faults.lives import supervised
from tests.faults.stored import nothing_left
from tests.stack import Stack
from tests.waiting import eventually

LONG: Final = os.environ.get("CORNSTALK_SOAK") == "long"
REQUESTS: Final = 1000 if LONG else 60
"""At least so many requests."""
ROUNDS: Final = 2
"""At least so many kills of each victim."""
IN_FLIGHT: Final = 6
EVERY: Final = 2.0
"""Seconds between two kills."""
VICTIMS: Final = ("worker", "worker", "dispatcher", "gateway", "sidecar", "operator", "nats-server")
WITHIN: Final = 100.0
"""Seconds a request may take."""
ENV: Final = {"CORNSTALK_GRACE": "3"} | ({} if LONG else {"CORNSTALK_ACK_WAIT": "2"})

MIX: Final[tuple[tuple[str, dict[str, Any], Callable[[str], dict[str, str]]], ...]] = (
    ("chain", {"pieces": 10, "service_ms": 60}, lambda text: chain(text, pieces=10)),
    ("lineage", {"pieces": 12, "service_ms": 60}, lambda text: lineage(text, 12)),
    ("turns", {"service_ms": 60}, turns),
    ("one", {"pieces": 10, "service_ms": 60}, lambda text: one(text, 10)),
)
"""App, input beside its text, and the right response."""


@dataclass
class Kill:
    victim: str
    at: float
    in_flight: set[int]  # requests
    right: int = 0
    recovered: float = 0.0  # seconds until the last of them was answered


@dataclass
class Soak:
    """Requests and kills side by side."""

    stack: Stack
    choice: random.Random
    kills: list[Kill] = field(default_factory=list)
    running: set[int] = field(default_factory=set)
    took: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    begun: int = 0

    async def run(self) -> None:
        async with supervised(self.stack):
            killing = asyncio.create_task(self._kill())
            await asyncio.gather(*(self._requests(killing) for _ in range(IN_FLIGHT)))
            await killing

    async def _kill(self) -> None:
        """Rounds in which each victim dies, in random order, until there were enough requests."""
        rounds = 0
        while rounds < ROUNDS or self.begun < REQUESTS:
            rounds += 1
            for victim in self.choice.sample(VICTIMS, len(VICTIMS)):
                await asyncio.sleep(EVERY)
                self.kills.append(Kill(victim, time.monotonic(), set(self.running)))
                self._die(victim)

    def _die(self, victim: str) -> None:
        if victim == "nats-server":
            self.stack.server.kill()
            self.stack.server.start()
            return
        mark = "@" if victim == "worker" else victim
        self.choice.choice([c for name, c in sorted(self.stack.children.items()) if mark in name]).kill()

    async def _requests(self, killing: asyncio.Task[None]) -> None:
        while not killing.done():
            number, self.begun = self.begun, self.begun + 1
            self.running.add(number)
            began = time.monotonic()
            try:
                await self._request(number)
            except AssertionError as error:
                self.wrong.append(f"request {number}: {str(error)[:500]}")
            else:
                self._answered(number, began)
            self.running.discard(number)

    async def _request(self, number: int) -> None:
        app, body, right = MIX[number % len(MIX)]
        text = f"soak {number}"
        headers = {"Cornstalk-Resume-Grace": "5"}
        answer = await ask(
            self.stack.clients, app, {"text": text, **body}, text, first=number, within=WITHIN, headers=headers
        )
        assert answer.response == right(text), f"{app} {answer}"

    def _answered(self, number: int, began: float) -> None:
        now = time.monotonic()
        self.took.append(now - began)
        for kill in self.kills:
            if number in kill.in_flight:
                kill.right += 1
                kill.recovered = max(kill.recovered, now - kill.at)

    async def counted_once(self) -> bool:
        """Each request has one record of what it used, and no node is in it twice."""
        records = [decode(RequestUsage, s.data) async for s in pages(self.stack.broker, USAGE, ALL_USAGE)]
        for record in records:
            assert len({node.node for node in record.nodes}) == len(record.nodes)
        ended = {(record.app, record.request) for record in records if record.status == "done"}
        assert len(ended) == len(records)
        return len(ended) == self.begun

    def report(self) -> None:
        took = sorted(self.took)
        print(f"{self.begun} requests, {len(took)} right; p50 {took[len(took) // 2]:.1f} s, longest {took[-1]:.1f} s")
        print(f"{'victim':12} kills  in flight  right  all answered after (median, longest)")
        for victim in dict.fromkeys(VICTIMS):
            kills = [kill for kill in self.kills if kill.victim == victim]
            asked, right = sum(len(kill.in_flight) for kill in kills), sum(kill.right for kill in kills)
            times = sorted(kill.recovered for kill in kills)
            print(f"{victim:12} {len(kills):5} {asked:10} {right:6}  {times[len(times) // 2]:.1f} s {times[-1]:.1f} s")


async def test_kills_of_any_process_spoil_no_request() -> None:
    seed = int(os.environ.get("CORNSTALK_SEED", secrets.randbelow(10**6)))
    print(f"seed {seed}")
    async with Stack(gateways=2, env=ENV) as stack:
        for path in (APPS / "one.py", APPS / "chain.py", FAULT_APPS / "lineage.py", FAULT_APPS / "turns.py"):
            await stack.deploy(path)
        soak = Soak(stack, random.Random(seed))
        await soak.run()
        soak.report()
        assert soak.wrong == []
        assert soak.begun >= REQUESTS
        await eventually(soak.counted_once, within=20.0)
        await nothing_left(stack, within=40.0)
