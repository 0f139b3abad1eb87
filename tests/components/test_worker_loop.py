"""What the worker loop does with each delivery, seen from its queue, the log and the sidecar."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from broker.chunks import ChunkReader
from broker.connection import Broker
from broker.pull import Delivery, PullLoop
from broker.server import Server
from broker.subjects import DLQ, cancel, cancel_hint, chunk, work_stream
from broker.work import publish_item
from components.attempt import RETRY_DELAYS
from components.engine import Call
from cornstalk.errors import EngineError
from cornstalk.messages import Cancel, Ref, encode
from cornstalk.task import UnitTask
from cornstalk.tasks.null import Null, NullStream, NullTensor
from tests.components.workshop import Act, Workshop
from tests.sidecar.conftest import running
from tests.waiting import eventually

SHORT = 0.5
"""Seconds of ack_wait, where a test waits for it."""

Make = Callable[[UnitTask], Workshop]


@pytest.fixture
async def workshop(nats_server: Server, broker: Broker) -> AsyncIterator[Make]:
    made: list[Workshop] = []
    with tempfile.TemporaryDirectory(prefix="ws-") as directory:
        sidecars = running(Path(directory), nats_server)
        sidecar = next(sidecars)

        def make(task: UnitTask) -> Workshop:
            made.append(Workshop(nats_server, broker, sidecar, task))
            return made[-1]

        yield make
        for one in made:
            await one.close()
        assert next(sidecars, None) is None


class Two:
    """Two attempts of one item: the first sleeps past ack_wait, and a second worker begins it as well."""

    def __init__(self, shop: Workshop, act: Callable[[Call, int], Any]) -> None:
        self._shop, self._act = shop, act
        self.begun = {1: asyncio.Event(), 2: asyncio.Event()}
        self.go = {1: asyncio.Event(), 2: asyncio.Event()}

    async def start(self) -> None:
        await self._shop.queue(SHORT)
        self.sleeper = await self._shop.worker(self._of(1), slots=1, ack_wait=1000.0)
        self.item = self._shop.item()
        await publish_item(self._shop.broker, self.item)
        await self.begun[1].wait()
        self.other = await self._shop.worker(self._of(2), slots=1, ack_wait=SHORT)
        await asyncio.wait_for(self.begun[2].wait(), 10)

    def _of(self, number: int) -> Act:
        async def act(call: Call) -> dict[str, Any]:
            await self._act(call, number)
            self.begun[number].set()
            await self.go[number].wait()
            if "text" in type(self._shop.task).outputs:
                await call.emit("text", f" and {number}")
                return {"pieces": 2}
            return {"digest": f"{number}"}

        return act


async def test_who_was_superseded_gives_no_answer(workshop: Make) -> None:
    """Neither ack (the item would be gone, should the other one die) nor nak (a third attempt would begin): rule 5."""
    shop = workshop(NullStream(name="talker"))

    async def first(call: Call, number: int) -> None:
        await call.emit("text", f"{number}")

    two = Two(shop, first)
    await two.start()
    two.go[1].set()
    await eventually(lambda: two.sleeper.running == 0)
    await two.sleeper.broker.nc.flush()
    for _ in range(3):
        assert await shop.deliveries() == (2, 1)
    two.go[2].set()
    assert (await shop.end(two.item)).outcome == "done"
    await eventually(lambda: _answered(shop))
    assert await shop.deliveries() == (2, 0)
    async with ChunkReader(shop.broker, chunk(two.item.request, "n", 0, "text")) as reader:
        await reader.set_total(3)
        pieces = [stored.chunk.payload async for stored in reader if not stored.chunk.takeover]
    assert pieces == ["1", "2", " and 2"]


async def _answered(shop: Workshop) -> bool:
    return (await shop.deliveries())[1] == 0


async def test_who_lost_the_fence_drops_its_own_blocks_and_no_others(workshop: Make) -> None:
    """Rule 1: an End of another attempt is there. The client of the sidecar that wins keeps its tensor."""
    shop = workshop(NullTensor(name="maker"))

    async def make(call: Call, number: int) -> None:
        await call.tensor("tensor", np.full(100_000, number, np.uint8))

    two = Two(shop, make)
    await two.start()
    two.go[2].set()
    won = await shop.end(two.item)
    assert won.outputs["digest"] == "2"
    assert (await two.other.sidecar.stats()).blocks == 2
    two.go[1].set()
    await eventually(lambda: two.sleeper.running == 0)
    ref = won.outputs["tensor"]
    assert isinstance(ref, Ref)

    async def one_left() -> bool:
        return (await two.other.sidecar.stats()).blocks == 1

    await eventually(one_left)
    with await two.sleeper.sidecar.get(ref) as lease:
        assert set(lease.array) == {2}
    assert (await shop.end(two.item)).attempt == won.attempt


async def test_an_error_that_may_pass_is_tried_again_ever_later(workshop: Make) -> None:
    """Rule 6."""
    shop = workshop(Null(name="value"))
    await shop.queue()
    starts: list[float] = []

    async def act(call: Call) -> dict[str, Any]:
        starts.append(time.monotonic())
        if len(starts) < 5:
            raise EngineError("not now", transient=True)
        return {"digest": "at last"}

    await shop.worker(act)
    item = shop.item()
    await publish_item(shop.broker, item)
    assert (await shop.end(item)).outputs == {"digest": "at last"}
    gaps = [b - a for a, b in pairwise(starts)]
    assert all(gap >= delay for gap, delay in zip(gaps, RETRY_DELAYS, strict=False))
    assert all(b > 1.5 * a for a, b in pairwise(RETRY_DELAYS))


async def test_a_failure_is_told_though_there_is_no_room_for_its_dead_letter(workshop: Make) -> None:
    shop = workshop(Null(name="value"))
    await shop.queue()
    config = (await shop.broker.api(f"STREAM.INFO.{DLQ}"))["config"]
    await shop.broker.api(f"STREAM.UPDATE.{DLQ}", config | {"max_bytes": 1})

    async def act(call: Call) -> dict[str, Any]:
        raise EngineError("never", code="never")

    await shop.worker(act)
    item = shop.item()
    await publish_item(shop.broker, item)
    end = await shop.end(item)
    assert end.error is not None
    assert (end.outcome, end.error.code) == ("failed", "never")
    await eventually(lambda: _answered(shop))
    assert await shop.deliveries() == (1, 0)


async def test_a_cancelled_request_is_seen_before_its_item_starts(workshop: Make) -> None:
    shop = workshop(Null(name="value"))
    await shop.queue()
    started: list[str] = []

    async def act(call: Call) -> dict[str, Any]:
        started.append(call.request)
        return {"digest": ""}

    worker = await shop.worker(act)
    item = shop.item()
    await shop.facts.put(cancel(item.request), encode(Cancel()), deadline=item.deadline, ttl=60)
    await shop.broker.publish_core(cancel_hint(item.request))
    await shop.broker.nc.flush()
    await worker.broker.nc.flush()
    await publish_item(shop.broker, item)
    assert (await shop.end(item)).outcome == "cancelled"
    assert started == []


async def test_an_item_longer_than_ack_wait_runs_once(workshop: Make) -> None:
    """In-progress goes out each third of ack_wait, from the event loop."""
    shop = workshop(Null(name="value"))
    await shop.queue(SHORT)

    async def act(call: Call) -> dict[str, Any]:
        await asyncio.sleep(4 * SHORT)
        return {"digest": call.attempt}

    for _ in range(2):
        await shop.worker(act, ack_wait=SHORT)
    item = shop.item()
    await publish_item(shop.broker, item)
    end = await shop.end(item)
    assert end.outputs == {"digest": end.attempt}
    await eventually(lambda: _answered(shop))
    assert await shop.deliveries() == (1, 0)


async def test_suspects_run_one_at_a_time_and_nobody_waits_for_them(workshop: Make) -> None:
    """Rule 6: a crash takes all items of a worker with it. Each comes again alone, so that poison kills only itself."""
    shop = workshop(Null(name="value"))
    await shop.queue()
    suspects = [shop.item(text="suspect") for _ in range(3)]
    for item in suspects:
        await publish_item(shop.broker, item)
    await _deliver_once(shop, len(suspects))
    running: dict[str, set[str]] = defaultdict(set)
    go = asyncio.Event()

    async def act(call: Call) -> dict[str, Any]:
        running[call.inputs["text"]].add(call.request)
        await go.wait()
        running[call.inputs["text"]].discard(call.request)
        assert not running["suspect"]
        return {"digest": ""}

    await shop.worker(act, slots=6)
    await eventually(lambda: running["suspect"])
    fresh = [shop.item(text="fresh") for _ in range(2)]
    for item in fresh:
        await publish_item(shop.broker, item)
    await eventually(lambda: len(running["fresh"]) == 2)
    assert len(running["suspect"]) == 1
    go.set()
    for item in (*suspects, *fresh):
        assert (await shop.end(item)).outcome == "done"


async def _deliver_once(shop: Workshop, count: int) -> None:
    """Takes items and hands them back, as the will of a dead worker does."""
    handed_back = 0

    async def handle(delivery: Delivery) -> None:
        nonlocal handed_back
        await delivery.nak(0.3)
        handed_back += 1

    loop = PullLoop(shop.broker, work_stream(shop.task.component), "interactive", handle, credits=count)
    await loop.start()
    await eventually(lambda: handed_back == count)
    await loop.stop()
