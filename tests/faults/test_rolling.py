"""A rolling restart of every process under load: SIGTERM, its end, its next life. No request fails, none is cut short.

What an attempt had begun goes on to its end: no stream of outputs changes its writer. A sidecar is not among them: the
tensors in its memory die with it and are made again (test_recovery.py).
"""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Any

from broker.reads import pages
from broker.subjects import ALL_CHUNKS, CHUNKS, DLQ
from cornstalk.messages import Chunk, decode
from tests.e2e.apps import APPS, chain, one
from tests.faults.apps import FAULT_APPS, turns
from tests.faults.client import ask
from tests.faults.lives import working
from tests.faults.stored import nothing_left
from tests.stack import Child, Stack
from tests.waiting import eventually

IN_FLIGHT = 4
MIX = (
    ("chain", {"pieces": 8, "service_ms": 50}, lambda text: chain(text, pieces=8)),
    ("turns", {"service_ms": 50}, turns),
    ("one", {"pieces": 8, "service_ms": 100}, lambda text: one(text, 8)),
)
ENV = {"CORNSTALK_GRACE": "600"}
"""Seconds: everything that was stored is there to be looked at."""


class Load:
    """Requests, some at a time, until it is told to stop."""

    def __init__(self, stack: Stack) -> None:
        self.stack, self.asked, self.stopped = stack, 0, False
        self.longest = 0.0

    async def run(self) -> None:
        await asyncio.gather(*(self._client() for _ in range(IN_FLIGHT)))

    async def _client(self) -> None:
        while not self.stopped:
            number, self.asked = self.asked, self.asked + 1
            app, body, right = MIX[number % len(MIX)]
            text, began = f"rolling {number}", time.monotonic()
            headers = {"Cornstalk-Resume-Grace": "10"}
            given: dict[str, Any] = {"text": text, **body}
            answer = await ask(self.stack.clients, app, given, text, first=number, headers=headers)
            assert answer.response == right(text), answer
            self.longest = max(self.longest, time.monotonic() - began)


async def restarted(stack: Stack, child: Child) -> None:
    """SIGTERM, and the next life once this one is over."""
    child.kill(signal.SIGTERM)

    async def is_over() -> bool:
        return not child.alive

    await eventually(is_over, within=40)
    assert child.wait(1) == 0, f"{child.name} did not end well"
    child.start()
    if "@" in child.name:
        await working(stack, child)
    if child.name.startswith("gateway"):
        await stack.wait_ready(int(child.name.removeprefix("gateway")))


async def test_a_rolling_restart_fails_nothing_and_repeats_nothing() -> None:
    async with Stack(gateways=2, env=ENV) as stack:
        for path in (APPS / "one.py", APPS / "chain.py", FAULT_APPS / "turns.py"):
            await stack.deploy(path)
        load = Load(stack)
        running = asyncio.create_task(load.run())
        try:
            for name, child in list(stack.children.items()):
                if name != "sidecar":
                    await restarted(stack, child)
                    assert not running.done()
            stack.server.stop()
            stack.server.start()
            before = load.asked
            await eventually(lambda: load.asked > before + 2 * IN_FLIGHT, within=30)
        finally:
            load.stopped = True
            await running
        print(f"{load.asked} requests, {len(stack.children)} restarts, longest {load.longest:.1f} s")
        chunks = [decode(Chunk, s.data) async for s in pages(stack.broker, CHUNKS, ALL_CHUNKS)]
        assert len(chunks) > load.asked
        assert [chunk for chunk in chunks if chunk.takeover] == []
        assert [s async for s in pages(stack.broker, DLQ, "dlq.>")] == []
        await nothing_left(stack, within=20)
