"""kill -9 at every named crash point: each time the answer is right, and the client loses and repeats nothing.

A case arms children with their points, sends requests until each has died there, and starts them again as a supervisor
does. Whoever adds a crash point adds its case.
"""

from __future__ import annotations

import asyncio
import base64
import re
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import httpx
import pytest

from broker.facts import Facts
from broker.reads import pages
from broker.subjects import DLQ, graph
from broker.topology import backlog, remove_component
from tests.batch.client import Client, job_id
from tests.e2e.apps import APPS, chain, large, looking, one
from tests.faults.apps import lineage, live, turns
from tests.faults.client import Answer, ask, request_id
from tests.faults.live import speak
from tests.faults.lives import component, lead, restart, supervised, working
from tests.faults.stored import begun, nothing_left, queues_empty
from tests.stack import ROOT, Child, Stack
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

SERVICES: Final = ("broker", "sidecar", "dispatcher", "gateway", "components")
NAMED: Final = sorted(
    {
        name
        for service in SERVICES
        for path in (ROOT / service).rglob("*.py")
        for name in re.findall(r'crash_at\("([^"]+)"\)', path.read_text())
    }
)
"""Every crash point that the sources name."""

WITHIN: Final = 40.0
"""Seconds that a request, and the death at a point, may take at most."""
AT_ONCE: Final = 3
PIECES: Final = 4


class Case:
    """Requests against armed children."""

    def __init__(self, stack: Stack, point: str) -> None:
        self.stack, self.point = stack, point
        self.armed: list[Child] = []
        self.answers: list[Answer] = []
        self._number = 0

    async def arm(self, *children: tuple[str, str]) -> None:
        """(name, CRASH_AT) of children that get a new life; returns when they are ready."""
        self.armed = [restart(self.stack.children[name], CRASH_AT=at) for name, at in children]
        workers = [child for child in self.armed if "@" in child.name]
        await working(self.stack, *workers)
        for i in range(self.stack.gateways):
            await self.stack.wait_ready(i)

    async def arm_worker(self, name: str) -> None:
        await self.arm((f"{component(self.stack, name)}@0", self.point))

    async def until_dead(self, request: Callable[[int], Awaitable[Answer | None]]) -> None:
        """Requests, some at a time, until each armed child has died; then its next life takes part in one more."""
        until = time.monotonic() + WITHIN
        async with supervised(self.stack):
            while any(not child.exits for child in self.armed):
                assert time.monotonic() < until, f"{self.point} was not reached within {WITHIN} s"
                await self._some(request)
            await self._some(request)
        assert [child.exits for child in self.armed] == [[-signal.SIGKILL]] * len(self.armed)

    async def _some(self, request: Callable[[int], Awaitable[Answer | None]]) -> None:
        self._number += AT_ONCE
        answers = await asyncio.gather(*(request(self._number + i) for i in range(AT_ONCE)))
        self.answers += [answer for answer in answers if answer is not None]

    async def chain(self, number: int) -> Answer:
        """One request of tensors and streams; gateway 0 first, in any case another one if that dies."""
        text = f"{self.point} {number}"
        body = {"text": text, "pieces": PIECES, "service_ms": 10}
        answer = await ask(self.stack.clients, "chain", body, text, within=WITHIN)
        assert answer.response == chain(text, pieces=PIECES)
        return answer

    async def turns(self, number: int) -> Answer:
        text = f"{self.point} {number}"
        answer = await ask(self.stack.clients, "turns", {"text": text, "service_ms": 10}, text, within=WITHIN)
        assert answer.response == turns(text)
        return answer

    async def look(self, number: int) -> Answer:
        """One of several at a time that bring the same file: one is looked at, the others find what came of it."""
        text, file = f"{self.point} {number}", f"{self.point} {number // AT_ONCE}".encode()
        body = {"text": text, "file": base64.b64encode(file).decode()}
        answer = await ask(self.stack.clients, "looking", body, text, within=WITHIN)
        assert answer.response == looking(text, file)
        return answer

    async def durable(self, number: int) -> Answer:
        text = f"{self.point} {number}"
        headers = {"Cornstalk-Durable": "true"}
        answer = await ask(self.stack.clients, "one", {"text": text}, text, within=WITHIN, headers=headers)
        assert answer.response == one(text)
        return answer

    async def failing(self, number: int) -> Answer:
        text = f"{self.point} {number}"
        answer = await ask(self.stack.clients, "one", {"text": text, "fail": "raise"}, text, within=WITHIN)
        assert answer.end is not None
        assert (answer.end["status"], answer.end["error"]["code"]) == ("failed", "asked_to_fail")
        return answer


async def in_worker(case: Case, name: str = "join") -> None:
    await case.arm_worker(name)
    await case.until_dead(case.chain)


async def in_look(case: Case) -> None:
    await case.stack.deploy(APPS / "looking.py")
    await case.arm_worker("looking-eye")
    await case.until_dead(case.look)


async def in_redelivery(case: Case, before: str) -> None:
    """One worker dies at `before`, and the other one with what it left."""
    name = component(case.stack, "join")
    await case.arm((f"{name}@0", before), (f"{name}@1", case.point))
    await case.until_dead(case.chain)


async def in_failure(case: Case) -> None:
    await case.arm_worker("value")
    await case.until_dead(case.failing)


async def in_regeneration(case: Case) -> None:
    """A stream is made again, for its tensor is lost; its next writer dies while it takes over the stored pieces."""
    name = component(case.stack, "talker")
    text = case.point
    asking = asyncio.create_task(ask(case.stack.clients, "lineage", {"text": text}, text, within=WITHIN))
    await begun(case.stack, request_id("lineage", text), 8)
    case.stack.children["sidecar"].kill()
    case.armed = [restart(case.stack.children[f"{name}@{i}"], CRASH_AT=case.point) for i in (0, 1)]
    restart(case.stack.children["sidecar"])
    await eventually(lambda: not all(child.alive for child in case.armed), within=WITHIN)
    case.armed = [child for child in case.armed if not child.alive]
    async with supervised(case.stack):
        assert (await asking).response == lineage(text)
    await case.until_dead(case.chain)


async def without_sidecar(case: Case) -> None:
    """Workers that find no sidecar keep their items until it is back, and die then."""
    name = component(case.stack, "maker")
    await case.arm((f"{name}@0", case.point), (f"{name}@1", case.point))
    sidecar = case.stack.children["sidecar"]
    sidecar.kill()
    sidecar.wait(10)
    requests = asyncio.gather(*(case.chain(i) for i in range(AT_ONCE)))

    async def all_claimed() -> bool:
        return (await backlog(case.stack.broker, name)).in_flight["interactive"] >= AT_ONCE

    await eventually(all_claimed, within=WITHIN)
    async with supervised(case.stack):
        await requests
    case.armed = [child for child in case.armed if child.exits]
    assert case.armed
    await case.until_dead(case.chain)


async def in_return(case: Case) -> None:
    """An item whose engine fails for now is handed back."""
    await case.arm_worker("value")

    async def passing(number: int) -> Answer:
        text = f"{case.point} {number}"
        answer = await ask(case.stack.clients, "one", {"text": text, "fail": "transient"}, text, within=WITHIN)
        assert answer.end is not None
        assert (answer.end["status"], answer.end["error"]["code"]) == ("failed", "asked_to_wait")
        return answer

    await case.until_dead(passing)


async def in_gateway(case: Case) -> None:
    """The client goes on at the other gateway."""
    await case.arm(("gateway0", case.point))
    await case.until_dead(case.chain)
    assert any(answer.cuts for answer in case.answers)


async def in_large_response(case: Case) -> None:
    """The values of a response that no message carries are stored, and the end that names them is not."""
    if not any("-other-" in name for name in case.stack.children):
        await case.stack.wait_ready(0)  # the case before may have killed it
        await case.stack.deploy(APPS / "large.py")
    await case.arm(("gateway0", case.point))

    async def whole(number: int) -> Answer:
        text = f"{case.point} {number}"
        answer = await ask(case.stack.clients, "large", {"text": text, "repeat": 2_000}, text, within=WITHIN)
        assert answer.response == large(text, repeat=2_000)
        return answer

    await case.until_dead(whole)
    assert any(answer.cuts for answer in case.answers)


async def in_serve(case: Case) -> None:
    await case.arm(("gateway0", case.point))
    await case.until_dead(case.turns)
    assert any(answer.cuts for answer in case.answers)


async def in_adoption(case: Case) -> None:
    """The gateway that drives a request dies, and so does the one on which its client goes on."""
    await case.arm(("gateway0", "driver.sent"), ("gateway1", case.point))
    await case.until_dead(case.chain)
    assert any(answer.cuts >= 2 for answer in case.answers)


async def in_live_input(case: Case) -> None:
    """The gateway that stores what the client streams in dies; the client says again what is not stored."""
    if not any("-live-echo-" in name for name in case.stack.children):
        await case.stack.wait_ready()
        await case.stack.wait_ready(0)
        await case.stack.deploy(APPS / "live.py")
    await case.arm(("gateway0", case.point))

    async def spoken(number: int) -> Answer:
        key = f"{case.point} {number}"
        text = f"{key}: " + "0123456789abcdef" * 6
        answer = await speak(case.stack.ports, text, key, within=WITHIN)
        right = live(text)
        assert {name: answer.response[name] for name in right} == right
        return answer

    await case.until_dead(spoken)


async def in_cancel(case: Case) -> None:
    """The cancel is stored: the request ends so, whoever was told."""
    await case.arm(("gateway0", case.point))

    async def cancelled(number: int) -> Answer:
        text = f"{case.point} {number}"
        body = {"text": text, "service_ms": 20_000}
        headers = {"Cornstalk-Durable": "true"}
        asking = asyncio.create_task(
            ask(case.stack.clients, "one", body, text, first=1, within=WITHIN, headers=headers)
        )
        await eventually(lambda: _cancel(case.stack, text), within=WITHIN)
        answer = await asking
        assert answer.end is not None
        assert answer.end["status"] == "cancelled"
        return answer

    await case.until_dead(cancelled)
    await queues_empty(case.stack, within=10.0)  # workers were told, although who should have done so is dead


async def _cancel(stack: Stack, key: str) -> bool:
    """Whether a gateway has taken the cancel."""
    for client in stack.clients:
        with suppress(httpx.TransportError):
            if (await client.delete(f"/requests/{request_id('one', key)}")).status_code == 202:
                return True
    return False


async def in_queueing(case: Case) -> None:
    await case.arm(("gateway0", case.point))
    await case.until_dead(case.durable)
    await queues_empty(case.stack, within=20.0)


async def in_batch(case: Case) -> None:
    """A gateway that has a job, or drives one of its rows, dies; every row has its result all the same, once."""
    await case.arm(("gateway0", case.point))

    async def job(number: int) -> None:
        key = f"{case.point} {number}"
        async with Client(case.stack.server) as client:
            rows = [{"text": f"{key} {i}"} for i in range(6)]
            await client.submit("one", idempotency_key=key, rows=rows[:3], last=False)
            await client.submit("one", idempotency_key=key, rows=rows[3:], first=3)
            heard = await client.hear(job_id("one", key), within=WITHIN)
        assert {i: row["response"] for i, row in heard.rows.items()} == {i: one(f"{key} {i}") for i in range(6)}

    await case.until_dead(job)
    await queues_empty(case.stack, within=20.0)


async def in_refusal(case: Case) -> None:
    await case.arm(("gateway0", case.point))

    async def job(number: int) -> None:
        key = f"{case.point} {number}"
        async with Client(case.stack.server) as client:
            await client.submit("one", idempotency_key=key, rows=[])
            await client.hear(job_id("one", key), until="refused", within=WITHIN)

    await case.until_dead(job)


async def in_dispatcher(case: Case) -> None:
    child = case.stack.children["dispatcher0"]
    await lead(case.stack, child, CRASH_AT=case.point)
    case.armed = [child]
    await case.until_dead(case.chain)


async def in_malformed(case: Case) -> None:
    """A fact that nobody can read ends its request, once, and lies among the dead letters, once."""
    child = case.stack.children["dispatcher0"]
    await lead(case.stack, child, CRASH_AT=case.point)
    case.armed = [child]
    broken: list[str] = []

    async def malformed(number: int) -> None:
        text = f"{case.point} {number}"
        body = {"text": text, "service_ms": 20_000}
        asking = asyncio.create_task(ask(case.stack.clients, "one", body, text, within=WITHIN))
        request = request_id("one", text)
        facts = Facts(case.stack.broker)
        await eventually(lambda: facts.last(graph(request, 0)), within=WITHIN)
        await facts.put(graph(request, 99), b"\xc1 no msgpack", deadline=time.time() + WITHIN, ttl=600)
        answer = await asking
        assert answer.end is not None
        assert (answer.end["status"], answer.end["error"]["code"]) == ("failed", "malformed")
        broken.append(request)

    await case.until_dead(malformed)

    async def buried() -> bool:
        letters = [s.subject async for s in pages(case.stack.broker, DLQ, "dlq.dispatcher.malformed.>")]
        found = sorted(subject.split(".")[3] for subject in letters)
        assert len(found) == len(set(found))
        return set(broken) <= set(found)

    await eventually(buried, within=WITHIN)
    await queues_empty(case.stack, within=10.0)


async def without_queue(case: Case) -> None:
    """The queue of a component is away: a trigger that is held comes again."""
    child = case.stack.children["dispatcher0"]
    await lead(case.stack, child, CRASH_AT=case.point)
    case.armed = [child]
    operator = case.stack.children["operator"]
    operator.kill(signal.SIGTERM)
    operator.wait(10)
    await remove_component(case.stack.broker, component(case.stack, "talker"))
    requests = asyncio.gather(*(case.chain(i) for i in range(AT_ONCE)))
    await eventually(lambda: not child.alive, within=WITHIN)
    operator.start()  # its first round makes the queues anew
    async with supervised(case.stack):
        await requests
    await case.until_dead(case.chain)


Run = Callable[[Case], Awaitable[None]]


def worker(name: str) -> Run:
    return lambda case: in_worker(case, name)


def redelivered(before: str) -> Run:
    return lambda case: in_redelivery(case, before)


CASES: Final[dict[str, Run]] = {
    "worker.claimed": worker("head"),
    "worker.willed": worker("join"),
    "worker.taken": worker("talker"),
    "worker.starting": worker("maker"),
    "worker.recalled": in_look,
    "worker.leased": worker("join"),
    "worker.inherited": in_regeneration,
    "worker.opened": worker("talker"),
    "worker.granted": worker("maker"),
    "worker.chunk": worker("talker"),
    "worker.first": worker("talker"),
    "worker.ran": worker("maker"),
    "worker.flushed": worker("echo"),
    "worker.committed": worker("maker"),
    "worker.ended": worker("echo"),
    "worker.stored": worker("maker"),
    "worker.acked": worker("join"),
    "worker.looked": redelivered("worker.stored"),
    "worker.counted": redelivered("worker.leased"),
    "worker.marked": redelivered("worker.ran"),
    "worker.buried": in_failure,
    "worker.returning": in_return,
    "worker.rejoined": without_sidecar,
    "driver.pass": in_gateway,
    "driver.known": in_gateway,
    "driver.spooled": in_gateway,
    "driver.stored": in_gateway,
    "driver.sent": in_gateway,
    "driver.woken": in_gateway,
    "driver.answered": in_gateway,
    "driver.response_spooled": in_large_response,
    "driver.served": in_serve,
    "driver.finished": in_gateway,
    "gateway.accepting": in_gateway,
    "gateway.accepted": in_gateway,
    "gateway.told": in_gateway,
    "gateway.adopting": in_adoption,
    "gateway.input": in_live_input,
    "gateway.input_flushed": in_live_input,
    "gateway.input_ended": in_live_input,
    "gateway.cancelled": in_cancel,
    "gateway.queued": in_queueing,
    "gateway.driven": in_queueing,
    "batch.registered": in_batch,
    "batch.refused": in_refusal,
    "batch.begun": in_batch,
    "batch.started": in_batch,
    "batch.result": in_batch,
    "batch.stored": in_batch,
    "batch.summed": in_batch,
    "dispatcher.received": in_dispatcher,
    "dispatcher.read": in_dispatcher,
    "dispatcher.decided": in_dispatcher,
    "dispatcher.half": in_dispatcher,
    "dispatcher.published": in_dispatcher,
    "dispatcher.counted": in_dispatcher,
    "dispatcher.acked": in_dispatcher,
    "dispatcher.held": without_queue,
    "dispatcher.condemned": in_malformed,
    "dispatcher.buried": in_malformed,
}


async def test_no_crash_point_is_forgotten() -> None:
    assert sorted(CASES) == NAMED


@pytest.mark.parametrize("point", CASES)
async def test_killed_at(stack: Stack, point: str) -> None:
    try:
        await CASES[point](Case(stack, point))
    except BaseException:
        print(stack.logs(tail=400))
        raise


async def test_nothing_is_left_behind(stack: Stack) -> None:
    """After all these deaths: no item, no drive item, no tensor."""
    await nothing_left(stack, within=30.0)
