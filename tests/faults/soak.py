"""Requests and faults side by side: what the soak and `python -m bench faults` do.

Answers depend on inputs, so one that is wrong, lost, doubled or swapped is seen. The choice of victims is seeded.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from broker.reads import pages
from broker.subjects import ALL_USAGE, USAGE
from cornstalk.messages import decode
from cornstalk.usage import RequestUsage
from tests.e2e.apps import APPS, chain, one
from tests.faults.apps import FAULT_APPS, lineage, turns
from tests.faults.client import ask, request_id
from tests.faults.lives import supervised
from tests.stack import Child, Stack
from tests.waiting import eventually

LONG: Final = os.environ.get("CORNSTALK_SOAK") == "long"
REQUESTS: Final = 1000 if LONG else 60
"""At least so many requests."""
ROUNDS: Final = 2 if LONG else 1
"""At least so many kills of each victim."""
IN_FLIGHT: Final = 6
EVERY: Final = 2.0
"""Seconds between two kills."""
KILL, TERM, STOP = signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP
VICTIMS: Final = (
    ("worker", KILL),
    ("worker", KILL),
    ("dispatcher", KILL),
    ("gateway", KILL),
    ("sidecar", KILL),
    ("operator", KILL),
    ("nats-server", KILL),
    ("worker", TERM),
    ("gateway", TERM),
    ("nats-server", TERM),
    ("worker", STOP),
    ("dispatcher", STOP),
    ("gateway", STOP),
    ("sidecar", STOP),
)
STOPPED: Final = 20.0 if LONG else 4.0
"""Seconds that a stopped process stays so: longer than ack_wait."""
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


@asynccontextmanager
async def soaked(**env: str) -> AsyncIterator[Stack]:
    """Two gateways, two dispatchers, two workers a component, and the apps of MIX."""
    async with Stack(gateways=2, env=ENV | env) as stack:
        for path in (APPS / "one.py", APPS / "chain.py", FAULT_APPS / "lineage.py", FAULT_APPS / "turns.py"):
            await stack.deploy(path)
        yield stack


@dataclass
class Fault:
    victim: str
    signal: signal.Signals
    at: float
    in_flight: set[int]  # requests
    right: int = 0
    recovered: float = 0.0  # seconds until the last of them was answered


@dataclass
class Soak:
    """Requests and kills side by side."""

    stack: Stack
    choice: random.Random
    victims: tuple[tuple[str, signal.Signals], ...] = VICTIMS
    requests: int = REQUESTS
    faults: list[Fault] = field(default_factory=list)
    running: set[int] = field(default_factory=set)
    took: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    begun: int = 0
    first: int = 0  # number of its first request
    paced: bool = False  # the next fault comes when all that met the one before are answered

    async def calmly(self) -> None:
        """Its requests without a fault."""
        for at in range(0, self.requests, IN_FLIGHT):
            await asyncio.gather(*(self._one() for _ in range(at, min(at + IN_FLIGHT, self.requests))))

    async def run(self) -> None:
        async with supervised(self.stack):
            killing = asyncio.create_task(self._kill())
            await asyncio.gather(*(self._requests(killing) for _ in range(IN_FLIGHT)))
            await killing

    async def _kill(self) -> None:
        """Rounds in which each victim gets its signal, in random order, until there were enough requests."""
        rounds = 0
        async with asyncio.TaskGroup() as stopped:
            while rounds < ROUNDS or self.begun < self.requests:
                rounds += 1
                for victim, number in self.choice.sample(self.victims, len(self.victims)):
                    await asyncio.sleep(EVERY)
                    fault = Fault(victim, number, time.monotonic(), set(self.running))
                    self.faults.append(fault)
                    if (child := self._hit(victim, number)) is not None and number is STOP:
                        stopped.create_task(_wake(child))
                    if self.paced:
                        await eventually(lambda met=fault.in_flight: not met & self.running, within=WITHIN)

    def _hit(self, victim: str, number: signal.Signals) -> Child | None:
        if victim == "nats-server":
            self.stack.server.stop() if number is TERM else self.stack.server.kill()
            self.stack.server.start()
            return None
        mark = "@" if victim == "worker" else victim
        child = self.choice.choice([c for name, c in sorted(self.stack.children.items()) if mark in name])
        child.kill(number)
        return child

    async def _requests(self, killing: asyncio.Task[None]) -> None:
        while not killing.done():
            await self._one()

    async def _one(self) -> None:
        number, self.begun = self.first + self.begun, self.begun + 1
        self.running.add(number)
        began = time.monotonic()
        try:
            await self._request(number)
        except AssertionError as error:
            self.wrong.append(f"request {number}: {str(error)[:500]}")
        else:
            self._answered(number, began)
        self.running.discard(number)

    @staticmethod
    def request(number: int) -> str:
        """Id of request `number`."""
        return request_id(MIX[number % len(MIX)][0], f"soak {number}")

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
        for kill in self.faults:
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
        return len(ended) == self.first + self.begun

    def report(self) -> dict[str, Any]:
        """Per victim and signal: faults, requests in flight, right ones, and after how long the last was answered."""
        table: dict[str, Any] = {}
        for victim, number in dict.fromkeys(self.victims):
            faults = [fault for fault in self.faults if (fault.victim, fault.signal) == (victim, number)]
            times = sorted(fault.recovered for fault in faults) or [0.0]
            table[f"{victim} {number.name}"] = {
                "faults": len(faults),
                "requests": sum(len(fault.in_flight) for fault in faults),
                "right": sum(fault.right for fault in faults),
                "answered_p50_s": round(times[len(times) // 2], 2),
                "answered_max_s": round(times[-1], 2),
            }
        return table


async def _wake(child: Child) -> None:
    await asyncio.sleep(STOPPED)
    child.kill(signal.SIGCONT)
