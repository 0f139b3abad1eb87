"""Three nats-servers, three copies of each stream: requests go on while one leader after the other is killed."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from broker.reads import pages
from broker.subjects import ALL_USAGE, CHUNKS, RUNS, USAGE
from cornstalk.messages import decode
from cornstalk.usage import RequestUsage
from tests.broker.cluster import Cluster
from tests.e2e.apps import APPS, chain, one
from tests.faults.client import ask
from tests.faults.stored import nothing_left
from tests.stack import Stack
from tests.waiting import eventually

AT_ONCE: Final = 4
ANSWERS: Final = 5
"""Requests that begin and end well between two faults."""
ENV: Final = {"CORNSTALK_STREAM_COPIES": "3", "CORNSTALK_ACK_WAIT": "2", "CORNSTALK_GRACE": "3"}


class Load:
    """Requests, some at a time, each of them right."""

    def __init__(self, stack: Stack) -> None:
        self._stack, self._numbers = stack, itertools.count()
        self.answered = 0

    async def run(self) -> None:
        """Until cancelled."""
        await asyncio.gather(*(self._requests() for _ in range(AT_ONCE)))

    async def _requests(self) -> None:
        while True:
            number = next(self._numbers)
            text = f"leaders {number}"
            app, right = ("one", one) if number % 2 else ("chain", chain)
            answer = await ask(self._stack.clients, app, {"text": text, "service_ms": 20}, text, first=number)
            assert answer.response == right(text)
            self.answered += 1


@asynccontextmanager
async def loaded(stack: Stack) -> AsyncIterator[Load]:
    load = Load(stack)
    running = asyncio.create_task(load.run())
    try:
        yield load
    finally:
        running.cancel()
        try:
            await running
        except asyncio.CancelledError:
            pass


async def test_requests_go_on_while_leaders_are_killed_and_come_back(tmp_path: Path) -> None:
    """The leader of the facts, the leader of the cluster, and the next leader of the facts: each is missed, started
    again, and has caught up before the next one dies.
    """
    async with (
        Cluster(tmp_path) as cluster,
        Stack(gateways=2, nats_url=cluster.url, env=ENV) as stack,
    ):
        for name in ("one", "chain"):
            await stack.deploy(APPS / f"{name}.py")
        async with loaded(stack) as load:

            async def more_answers() -> None:
                enough = load.answered + ANSWERS
                await eventually(lambda: load.answered >= enough, within=60)

            await more_answers()
            for leader in (lambda: cluster.leader(RUNS), cluster.meta_leader, lambda: cluster.leader(RUNS)):
                victim = await leader()
                cluster.kill(victim)
                await more_answers()
                cluster.start(victim)
                await eventually(lambda: cluster.caught_up((RUNS, CHUNKS, USAGE)), within=60)
                await more_answers()
        await nothing_left(stack, within=60)
        await eventually(lambda: counted_once(stack, load.answered), within=20)


async def counted_once(stack: Stack, answered: int) -> bool:
    records = [decode(RequestUsage, s.data) async for s in pages(stack.broker, USAGE, ALL_USAGE)]
    for record in records:
        assert len({node.node for node in record.nodes}) == len(record.nodes)
    assert len({record.request for record in records}) == len(records)
    return sum(record.status == "done" for record in records) >= answered
