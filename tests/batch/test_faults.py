"""Batch jobs while processes die: every row right, none lost, none doubled, the job ends, nothing is left.

CORNSTALK_SOAK=long is the same for 10,000 rows. CORNSTALK_SEED repeats a run's choice of victims.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import signal
import time
from typing import Any, Final

import pytest

from broker.facts import Facts
from broker.reads import pages
from broker.subjects import BATCH, accepted, batch_results, finish
from cornstalk.messages import Accepted, Finish, encode
from tests.batch.client import Client, Heard, job_id
from tests.batch.conftest import FAST
from tests.e2e.apps import APPS, one
from tests.faults.lives import supervised
from tests.faults.stored import nothing_left
from tests.stack import Stack
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONG: Final = os.environ.get("CORNSTALK_SOAK") == "long"
ROWS: Final = 10_000 if LONG else 300
AT_ONCE: Final = 2_500
"""Rows of one message."""
WITHIN: Final = 1800.0 if LONG else 150.0
EVERY: Final = 2.0
"""Seconds between two kills."""
VICTIMS: Final = ("gateway0", "gateway1", "dispatcher0", "dispatcher1", "worker", "nats-server")


async def submit(client: Client, key: str, count: int, **more: Any) -> str:
    rows = [{"text": f"{key} {i}", **more} for i in range(count)]
    for first in range(0, count, AT_ONCE):
        part = rows[first : first + AT_ONCE]
        last = first + len(part) == count
        await client.submit("one", as_json=False, idempotency_key=key, rows=part, first=first, last=last)
    return job_id("one", key)


async def ended(stack: Stack, job: str) -> int:
    """Rows that have a result."""
    return sum([s.subject.rpartition(".")[2].isdigit() async for s in pages(stack.broker, BATCH, batch_results(job))])


async def reached(stack: Stack, job: str, count: int) -> None:
    async def so_many() -> bool:
        return await ended(stack, job) >= count

    await eventually(so_many, within=WITHIN, every=0.03)


def check(heard: Heard, key: str, count: int) -> None:
    assert sorted(heard.rows) == list(range(count))
    wrong = [row for i, row in heard.rows.items() if row["response"] != one(f"{key} {i}")]
    assert wrong == []
    summary = heard.word("summary")
    assert summary is not None
    assert (summary["rows"], summary["done"], summary["status"]) == (count, count, "done")


async def another_is_purged(stack: Stack) -> None:
    """Returns when a request that ends now, and is no row, has been kept for as long as finished requests are."""
    facts, request, deadline = Facts(stack.broker), secrets.token_hex(16), time.time() + 60
    begun = Accepted(request=request, tenant="t", app="one", app_version="1", deadline=deadline)
    await facts.put(accepted(request), encode(begun), deadline=deadline, ttl=600)
    await facts.put(finish(request), encode(Finish(status="cancelled")), deadline=deadline, ttl=600)

    async def purged() -> bool:
        return await facts.last(accepted(request)) is None

    await eventually(purged, within=30)


@pytest.mark.parametrize("victim", ["gateway0", "gateway1", "dispatcher"])
async def test_killed_in_the_middle(stack: Stack, client: Client, victim: str) -> None:
    """Of two gateways one runs the job, and both drive rows: each is killed once."""
    key = f"killed {victim}"
    job = await submit(client, key, 120, service_ms=20)
    await reached(stack, job, random.Random(key).randrange(10, 60))
    async with supervised(stack):
        for name in [name for name in stack.children if name.startswith(victim)]:
            stack.children[name].kill()
        check(await client.hear(job, within=60), key, 120)


async def test_all_gateways_die_and_come_back(stack: Stack, client: Client) -> None:
    job = await submit(client, "all", 100, service_ms=20)
    await reached(stack, job, 20)
    for i in (0, 1):
        stack.children[f"gateway{i}"].kill()
        stack.children[f"gateway{i}"].wait(10)
    await another_is_purged(stack)  # and an end that nobody took is not
    before = await ended(stack, job)
    assert before < 100
    for i in (0, 1):
        stack.children[f"gateway{i}"].start()
    check(await client.hear(job, within=60), "all", 100)


async def test_a_gateway_that_stops_in_order_hands_its_jobs_over_at_once(stack: Stack, client: Client) -> None:
    job = await submit(client, "handed", 150, service_ms=20)
    await reached(stack, job, 20)
    for i in (0, 1):
        gateway = stack.children[f"gateway{i}"]
        gateway.kill(signal.SIGTERM)
        assert gateway.wait(10) is not None
        count, began = await ended(stack, job), time.monotonic()
        if count < 140:
            await reached(stack, job, count + 5)
            assert time.monotonic() - began < float(FAST["CORNSTALK_ACK_WAIT"]), "nobody waits for ack_wait"
        gateway.start()
        await stack.wait_ready(i)
    check(await client.hear(job, within=60), "handed", 150)


async def test_cancelled_while_the_gateway_that_runs_it_is_dead(stack: Stack, client: Client) -> None:
    job = await submit(client, "dead", 300, service_ms=150)
    await reached(stack, job, 5)
    for i in (0, 1):
        stack.children[f"gateway{i}"].kill()
        stack.children[f"gateway{i}"].wait(10)
    await client.cancel(job)
    for i in (0, 1):
        stack.children[f"gateway{i}"].start()
    heard = await client.hear(job, within=60)
    statuses = heard.statuses()
    assert statuses.keys() == {"done", "cancelled"}
    assert 5 <= statuses["done"] < 200, "what was under way may have ended well"
    assert sum(statuses.values()) == 300
    await nothing_left(stack, within=20)


async def test_random_kills_spoil_no_row() -> None:
    """The long form is 10,000 rows; each victim dies again and again."""
    seed = int(os.environ.get("CORNSTALK_SEED", secrets.randbelow(10**6)))
    choice = random.Random(seed)
    kills: list[str] = []
    async with Stack(gateways=2, env=FAST) as stack:
        await stack.deploy(APPS / "one.py")
        async with Client(stack.server) as client, supervised(stack):
            began = time.monotonic()
            job = await submit(client, "soak", ROWS, service_ms=5 if LONG else 100)
            hearing = asyncio.create_task(client.hear(job, within=WITHIN))
            while not hearing.done() and (LONG or len(kills) < len(VICTIMS)):
                for victim in choice.sample(VICTIMS, len(VICTIMS)):
                    await asyncio.wait([hearing], timeout=EVERY)
                    kills.append(victim)
                    kill(stack, victim, choice)
            heard = await hearing
            print(f"seed {seed}: {ROWS} rows, {len(kills)} kills, {time.monotonic() - began:.0f} s")
            check(heard, "soak", ROWS)
            again = await client.hear(job)
            assert again.rows == heard.rows
        await nothing_left(stack, within=30)


def kill(stack: Stack, victim: str, choice: random.Random) -> None:
    if victim == "nats-server":
        stack.server.kill()
        stack.server.start()
    elif victim == "worker":
        choice.choice([child for name, child in sorted(stack.children.items()) if "@" in name]).kill()
    else:
        stack.children[victim].kill()
