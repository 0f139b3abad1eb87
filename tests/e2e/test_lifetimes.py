"""Nothing that is stored of a request outlives its deadline for long, whoever stored it (rule 8)."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from broker.facts import Facts
from broker.lifetimes import FACT_GRACE
from broker.reads import Stored, pages
from broker.subjects import ALL_UPLOADS, CHUNKS, UPLOADS, chunks_of, finish, parse_run
from broker.uploads import MARGIN
from tests.e2e.apps import APPS
from tests.faults.apps import FAULT_APPS
from tests.stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

DEADLINE = 40.0
SLACK = 5.0
"""Seconds that a request may have run when a message was stored; and TTLs are whole seconds."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    async with Stack() as running:
        for path in (APPS / "chain.py", APPS / "large.py", FAULT_APPS / "turns.py"):
            await running.deploy(path)
        yield running


def lives(stored: Stored) -> float:
    """Seconds from when it was stored."""
    return float(stored.headers["Nats-TTL"].removesuffix("s"))


async def test_facts_chunks_and_spooled_values_have_a_life(stack: Stack) -> None:
    kinds = set()
    for app, body in (
        ("chain", {"text": "x"}),
        ("turns", {"text": "x"}),
        ("large", {"text": "long " * 30_000, "pieces": 30}),
    ):
        deadline = time.time() + DEADLINE
        answer = await stack.clients[0].post(f"/apps/{app}", json=body, headers={"Cornstalk-Deadline": str(DEADLINE)})
        assert answer.status_code == 200, answer.text
        request = answer.json()["request"]
        for stored in (await Facts(stack.broker).read(request)).messages:
            kinds.add(parse_run(stored.subject).kind)
            until = 0.0 if stored.subject == finish(request) else deadline - stored.time  # the tombstone lives from now
            assert until + FACT_GRACE - SLACK <= lives(stored) <= until + FACT_GRACE + SLACK, stored.subject
        async for stored in pages(stack.broker, CHUNKS, chunks_of(request)):
            kinds.add("chunk")
            until = deadline - stored.time
            assert until + FACT_GRACE - SLACK <= lives(stored) <= until + FACT_GRACE + SLACK, stored.subject
    async for stored in pages(stack.broker, UPLOADS, ALL_UPLOADS):
        kinds.add("upload")
        assert lives(stored) <= DEADLINE + FACT_GRACE + MARGIN + SLACK, stored.subject
    assert kinds == {"accepted", "graph", "first", "node-end", "end", "chunk", "upload"}
