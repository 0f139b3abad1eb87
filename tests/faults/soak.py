"""Requests and faults side by side: what the soak and `python -m bench faults` do.

Answers depend on inputs, so one that is wrong, lost, doubled or swapped is seen. The choice of victims is seeded.
"""

from __future__ import annotations

import asyncio
import base64
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from broker.reads import pages
from broker.subjects import ALL_USAGE, USAGE
from cornstalk.messages import decode
from cornstalk.usage import RequestUsage
from sidecar.errors import SidecarError
from tests.e2e.apps import APPS, chain, looking, one
from tests.faults.apps import FAULT_APPS, guess, lineage, turns
from tests.faults.client import Answer, ask, request_id
from tests.faults.injections import Lines, fill, lines, lose_answers
from tests.faults.lives import component, supervised
from tests.faults.stored import progress
from tests.stack import Child, Stack
from tests.waiting import eventually

LONG: Final = os.environ.get("CORNSTALK_SOAK") == "long"
REQUESTS: Final = 1000 if LONG else 60
"""At least so many requests."""
ROUNDS: Final = 2 if LONG else 1
"""At least so many faults of each kind."""
IN_FLIGHT: Final = 6
EVERY: Final = 2.0
"""Seconds between two faults."""
KILL, TERM, STOP = "SIGKILL", "SIGTERM", "SIGSTOP"
CUT: Final = "cut"
"""The connection to NATS breaks."""
DEAF: Final = "deaf"
"""What NATS says is lost for a while, PubAcks among it; then the connection breaks."""
FULL: Final = "full"
"""Somebody else takes all memory for tensors for a while."""
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
    ("nats-server", STOP),
    ("worker", CUT),
    ("dispatcher", CUT),
    ("gateway", CUT),
    ("sidecar", CUT),
    ("worker", DEAF),
    ("dispatcher", DEAF),
    ("gateway", DEAF),
    ("sidecar", FULL),
)
STOPPED: Final = 20.0 if LONG else 4.0
"""Seconds that a stopped process stays so: longer than ack_wait."""
FROZEN: Final = 5.0
"""Seconds that NATS stays stopped: longer than two heartbeats of a pull."""
DEAF_FOR: Final = 0.5
FULL_FOR: Final = 3.0
WITHIN: Final = 100.0
"""Seconds a request may take."""
ENV: Final = {"CORNSTALK_GRACE": "3", "CORNSTALK_WORKER_QUOTA": str(1 << 20)} | (
    {} if LONG else {"CORNSTALK_ACK_WAIT": "2"}
)
MEMORY: Final = 48 << 20
"""Bytes for tensors."""

Right = Callable[[str, Answer], bool]


def answers(expected: Callable[[str], dict[str, str]]) -> Right:
    return lambda text, answer: answer.response == expected(text)


def fails(text: str, answer: Answer) -> bool:
    """The failure that was asked for; what was streamed until then is right as far as it goes."""
    end, streamed = answer.end or {}, "".join(answer.pieces.get("text", ()))
    failed = end["status"] == "failed" and end["error"]["code"] == "asked_to_fail"
    return failed and one(text, 10)["text"].startswith(streamed)


SHOWN: Final = b"one file, which is looked at once while the sidecar lives" * 20

Kind = tuple[str, dict[str, Any], Right]
"""App, input beside its text, and whether an answer is right."""
MIX: Final[tuple[Kind, ...]] = (
    ("chain", {"pieces": 10, "service_ms": 60}, answers(lambda text: chain(text, pieces=10))),
    ("lineage", {"pieces": 12, "service_ms": 60}, answers(lambda text: lineage(text, 12))),
    ("turns", {"service_ms": 60}, answers(turns)),
    ("one", {"pieces": 10, "service_ms": 60}, answers(lambda text: one(text, 10))),
    ("one", {"pieces": 10, "service_ms": 60, "fail": "raise"}, fails),
    ("guess", {}, answers(guess)),
    (
        "looking",
        {"file": base64.b64encode(SHOWN).decode(), "service_ms": 60, "after_ms": 60},
        answers(lambda text: looking(text, SHOWN)),
    ),
)


@asynccontextmanager
async def soaked(**env: str) -> AsyncIterator[Stack]:
    """Two gateways, two dispatchers, two workers a component, and the apps of MIX."""
    async with Stack(gateways=2, env=ENV | env, sidecar_bytes=MEMORY) as stack:
        for path in (
            APPS / "one.py",
            APPS / "chain.py",
            APPS / "looking.py",
            FAULT_APPS / "lineage.py",
            FAULT_APPS / "turns.py",
            FAULT_APPS / "guess.py",
        ):
            await stack.deploy(path)
        yield stack


@asynccontextmanager
async def wired(stack: Stack) -> AsyncIterator[Lines]:
    """One process of each kind whose connection to NATS can be broken."""
    workers = (f"{component(stack, name)}@1" for name in ("talker", "maker", "join"))
    async with lines(stack, "dispatcher1", "gateway1", "sidecar", *workers) as found:
        yield found


@dataclass
class Fault:
    victim: str
    how: str
    at: float  # Unix seconds
    in_flight: set[int]  # requests
    right: int = 0
    lost: int = 0
    doubled: int = 0
    wrong: int = 0
    recovery: list[float] = field(default_factory=list)
    """Of each request: the longest time after the fault in which nothing of it was stored."""


@dataclass
class Soak:
    """Requests and faults side by side."""

    stack: Stack
    choice: random.Random
    victims: tuple[tuple[str, str], ...] = VICTIMS
    requests: int = REQUESTS
    lines: Lines = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    running: set[int] = field(default_factory=set)
    took: list[float] = field(default_factory=list)
    silences: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    begun: int = 0
    first: int = 0  # number of its first request
    mix: tuple[Kind, ...] = MIX
    every: float = EVERY
    rounds: int = ROUNDS
    paced: bool = False  # the next fault comes when all that met the one before are answered

    async def calmly(self) -> None:
        """Its requests without a fault."""
        for at in range(0, self.requests, IN_FLIGHT):
            await asyncio.gather(*(self._one() for _ in range(at, min(at + IN_FLIGHT, self.requests))))

    async def survive(self) -> None:
        """Runs, and says what happened. AssertionError if an answer was wrong, or too few were asked for."""
        await self.run()
        print(
            f"{self.begun} requests, {len(self.took)} right; p50 {share(self.took, 0.5)} s, max {max(self.took):.1f} s"
        )
        for name, row in self.report().items():
            print(f"{name:22}", "  ".join(f"{key} {value}" for key, value in row.items()))
        assert self.wrong == []
        assert self.begun >= self.requests

    async def run(self) -> None:
        async with supervised(self.stack):
            hurting = asyncio.create_task(self._hurt())
            await asyncio.gather(*(self._requests(hurting) for _ in range(IN_FLIGHT)))
            await hurting

    async def _hurt(self) -> None:
        """Rounds in which each victim has its fault, in random order, until there were enough requests."""
        rounds = 0
        async with asyncio.TaskGroup() as lasting:
            while rounds < self.rounds or self.begun < self.requests:
                rounds += 1
                for victim, how in self.choice.sample(self.victims, len(self.victims)):
                    await asyncio.sleep(self.every)
                    fault = Fault(victim, how, time.time(), set(self.running))
                    self.faults.append(fault)
                    if (victim, how) == ("nats-server", STOP):
                        await self._freeze()
                    else:
                        self._hit(victim, how, lasting)
                    if self.paced:
                        await eventually(lambda met=fault.in_flight: not met & self.running, within=WITHIN)

    def _hit(self, victim: str, how: str, lasting: asyncio.TaskGroup) -> None:
        match how:
            case "cut":
                self._line(victim).cut()
            case "deaf":
                lasting.create_task(lose_answers(self._line(victim), DEAF_FOR))
            case "full":
                lasting.create_task(_filled(self.stack))
            case _ if victim == "nats-server":
                self.stack.server.stop() if how is TERM else self.stack.server.kill()
                self.stack.server.start()
            case _:
                child = self._of(victim, self.stack.children)
                child.kill(signal.Signals[how])
                if how is STOP:
                    lasting.create_task(_wake(child))

    async def _freeze(self) -> None:
        os.kill(self.stack.server.pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(FROZEN)
        finally:
            os.kill(self.stack.server.pid, signal.SIGCONT)

    def _line(self, victim: str) -> Any:
        return self._of(victim, self.lines)

    def _of(self, victim: str, among: dict[str, Any]) -> Any:
        mark = "@" if victim == "worker" else victim
        return self.choice.choice([found for name, found in sorted(among.items()) if mark in name])

    async def _requests(self, hurting: asyncio.Task[None]) -> None:
        while not hurting.done():
            await self._one()

    async def _one(self) -> None:
        number, self.begun = self.first + self.begun, self.begun + 1
        self.running.add(number)
        began, failure = time.monotonic(), ""
        try:
            await self._request(number)
        except AssertionError as error:
            failure = str(error)[:500]
        self.running.discard(number)
        if failure:
            self.wrong.append(f"request {number}: {failure}")
        else:
            self.took.append(time.monotonic() - began)
        self._count(number, failure, await progress(self.stack, self.request(number)))

    def request(self, number: int) -> str:
        """Id of request `number`."""
        return request_id(self.mix[number % len(self.mix)][0], f"soak {number}")

    async def _request(self, number: int) -> None:
        app, body, right = self.mix[number % len(self.mix)]
        text = f"soak {number}"
        headers = {"Cornstalk-Resume-Grace": "5", "Cornstalk-Seed": "7"}
        answer = await ask(
            self.stack.clients, app, {"text": text, **body}, text, first=number, within=WITHIN, headers=headers
        )
        assert right(text, answer), f"{app} {answer}"

    def _count(self, number: int, failure: str, stored: list[float]) -> None:
        self.silences.append(_longest(stored, 0.0))
        for fault in self.faults:
            if number in fault.in_flight:
                fault.right += not failure
                fault.lost += failure.startswith("no end")
                fault.doubled += " after " in failure
                fault.wrong += bool(failure)
                fault.recovery.append(_longest(stored, fault.at))

    async def counted_once(self) -> bool:
        """Each request has one record of what it used, and no node is in it twice."""
        records = [decode(RequestUsage, s.data) async for s in pages(self.stack.broker, USAGE, ALL_USAGE)]
        for record in records:
            assert len({node.node for node in record.nodes}) == len(record.nodes)
        ended = {(record.app, record.request) for record in records if record.status in ("done", "failed")}
        assert len(ended) == len(records)
        return len(ended) == self.first + self.begun

    def report(self) -> dict[str, Any]:
        """Per victim and fault: how many, requests in flight, what became of them, and for how long nobody worked."""
        table: dict[str, Any] = {}
        for victim, how in dict.fromkeys(self.victims):
            faults = [fault for fault in self.faults if (fault.victim, fault.how) == (victim, how)]
            times = [seconds for fault in faults for seconds in fault.recovery]
            table[f"{victim} {how}"] = {
                "faults": len(faults),
                "requests": sum(len(fault.in_flight) for fault in faults),
                "right": sum(fault.right for fault in faults),
                "lost": sum(fault.lost for fault in faults),
                "doubled": sum(fault.doubled for fault in faults),
                "recovery_p50_s": share(times, 0.5),
                "recovery_p99_s": share(times, 0.99),
            }
        return table


def share(times: list[float], part: float) -> float:
    """The value below which that part of them lies; 0.0 if there is none."""
    ordered = sorted(times) or [0.0]
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * part))], 3)


def _longest(stored: list[float], since: float) -> float:
    """The longest time between two of these moments, as far as it lies after `since`."""
    return max((b - max(a, since) for a, b in pairwise(stored) if b > since), default=0.0)


async def _wake(child: Child) -> None:
    await asyncio.sleep(STOPPED)
    child.kill(signal.SIGCONT)


async def _filled(stack: Stack) -> None:
    with suppress(SidecarError):  # another fault has hit the sidecar
        await fill(stack, FULL_FOR)
