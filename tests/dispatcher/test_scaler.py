"""The operator with --autoscale: looks at real queues, sets how many workers are wanted, and says why."""

from __future__ import annotations

import signal
import time
import uuid
from typing import Any

from broker.registry import Registry
from broker.subjects import AUTOSCALE, COMPONENTS, DECISIONS, WORKERS, work_stream
from broker.work import publish_item
from cornstalk.messages import Lane, WorkItem, decode, encode
from cornstalk.records import ComponentRecord, ScaleDecision, ScalePolicy, WorkerBeat
from tests.dispatcher.harness import Bench, Process
from tests.dispatcher.test_operator import EAR, Registered
from tests.waiting import eventually

SLOTS = 4


class Scaled:
    """One component, `ear`, of an operator that scales it; its queue and its heartbeats are the test's."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.registered = bench, Registered(bench.broker)
        self._decisions = Registry(bench.broker, DECISIONS)

    async def operator(self, *flags: str) -> Process:
        return await self.bench.start("--poll", "0.05", *flags, module="dispatcher.operator")

    async def deployed(self, **policy: Any) -> None:
        if policy:
            await Registry(self.bench.broker, AUTOSCALE).put("ear", encode(ScalePolicy(**policy)))
        await self.registered.deploy("a", ear=EAR)
        await self.registered.serves("ear", "a")

    async def beat(self, slots: int = SLOTS) -> None:
        beat = WorkerBeat(worker="w", component="ear", host="h", pid=1, slots=slots, ready=True)
        await Registry(self.bench.broker, WORKERS).put("ear.w", encode(beat))

    async def items(self, count: int, lane: Lane = "interactive") -> None:
        for _ in range(count):
            item = WorkItem(
                request=uuid.uuid4().hex,
                node="n",
                gen=0,
                component="ear",
                lane=lane,
                tenant="t",
                deadline=time.time() + 60,
            )
            await publish_item(self.bench.broker, item)

    async def hold(self, count: int, lane: Lane = "interactive") -> None:
        """As many items run, and never end."""
        pull = await self.bench.broker.js.pull_subscribe_bind(lane, work_stream("ear"))
        assert len(await pull.fetch(count)) == count

    async def nothing_left(self) -> None:
        await self.bench.broker.api(f"STREAM.PURGE.{work_stream('ear')}")

    async def wanted(self, replicas: int, within: float = 5.0) -> ComponentRecord:
        async def there() -> ComponentRecord | None:
            record = await self.registered.component("ear")
            return record if record is not None and record.replicas == replicas else None

        record = await eventually(there, within)
        assert record is not None
        return record

    async def told(self) -> list[ScaleDecision]:
        """Newest first."""
        return [decode(ScaleDecision, data) for data in await self._decisions.history("ear")]

    async def rule(self, rule: str) -> ScaleDecision:
        """The newest decision, once it was settled by this rule."""

        async def newest() -> ScaleDecision | None:
            told = await self.told()
            return told[0] if told and told[0].rule == rule else None

        found = await eventually(newest)
        assert found is not None
        return found


async def test_items_of_both_lanes_waiting_and_running_ask_for_workers(bench: Bench) -> None:
    scaled = Scaled(bench)
    await scaled.operator("--autoscale")
    await scaled.deployed(max=9)
    assert (await scaled.wanted(1)).autoscaled
    await scaled.items(3)
    await scaled.items(6, "batch")
    await scaled.hold(2)
    await scaled.hold(1, "batch")
    assert (await scaled.rule("slots")).replicas == 1  # nobody has said how many a worker takes
    await scaled.beat()
    await scaled.wanted(3)
    decision = await scaled.rule("target")
    assert decision.pending == {"interactive": 1, "batch": 5}
    assert decision.in_flight == {"interactive": 2, "batch": 1}
    assert (decision.before, decision.replicas, decision.asked) == (1, 3, 3)
    assert decision.policy == ScalePolicy(max=9, target=SLOTS)
    assert decision.why == "9 items, 4 for each worker: 3"
    assert abs(decision.at - time.time()) < 10


async def test_to_zero_after_the_cooldown_and_back_for_the_first_item(bench: Bench) -> None:
    scaled = Scaled(bench)
    await scaled.operator("--autoscale")
    await scaled.deployed(min=0, max=3, target=2, cooldown=2, window=0)
    assert (await scaled.rule("cooldown")).replicas == 1
    await scaled.wanted(0)
    assert (await scaled.rule("idle")).why == "no item for 2 s: none"
    await scaled.items(9)
    await scaled.wanted(3)
    start = (await scaled.told())[-3]
    assert (start.rule, start.before, start.replicas) == ("start", 0, 1)
    assert (await scaled.rule("max")).asked == 5
    await scaled.nothing_left()
    await scaled.wanted(0)
    assert [d.replicas for d in await scaled.told() if d.before != d.replicas] == [0, 1, 3, 1, 0]


async def test_a_hold_is_told_once(bench: Bench) -> None:
    scaled = Scaled(bench)
    await scaled.operator("--autoscale")
    await scaled.deployed(max=2, target=1, window=2)
    await scaled.items(7)
    await scaled.wanted(2)
    await scaled.nothing_left()
    await scaled.wanted(1)
    told = [(d.before, d.replicas, d.rule) for d in reversed(await scaled.told())]
    assert told == [(1, 2, "max"), (2, 2, "window"), (2, 1, "min")]


async def test_a_killed_operator_loses_nothing(bench: Bench) -> None:
    scaled = Scaled(bench)
    first = await scaled.operator("--autoscale")
    await scaled.deployed(min=0, max=8, target=1, window=0, cooldown=1)
    await scaled.items(4)
    await scaled.wanted(4)
    told = await scaled.told()
    first.kill()
    await first.gone()
    await scaled.nothing_left()
    # it died between the two writes of a decision that nobody has seen
    lost = ScaleDecision(
        component="ear",
        at=time.time(),
        before=4,
        replicas=8,
        asked=8,
        rule="target",
        why="",
        pending={},
        in_flight={},
        policy=ScalePolicy(),
    )
    await Registry(bench.broker, DECISIONS).put("ear", encode(lost))
    await scaled.operator("--autoscale")
    await scaled.wanted(0, within=20)  # the lock of the dead one goes by its TTL of 10 s
    after = await scaled.told()
    assert after[-len(told) :] == told
    changes = [(d.before, d.replicas) for d in after[: -len(told)] if d.before != d.replicas]
    assert changes == [(1, 0), (4, 1), (4, 8)]


async def test_without_the_flag_the_number_of_workers_is_fixed_again(bench: Bench) -> None:
    scaled = Scaled(bench)
    first = await scaled.operator("--autoscale")
    await scaled.deployed(min=0, cooldown=0)
    await scaled.wanted(0)
    first.kill(signal.SIGTERM)
    assert await first.gone() == 0
    await scaled.operator()
    record = await scaled.wanted(2)
    assert not record.autoscaled


async def test_what_was_decided_of_a_removed_component_goes_with_it_and_settings_stay(bench: Bench) -> None:
    scaled = Scaled(bench)
    await scaled.operator("--autoscale")
    await scaled.deployed(min=3, max=3)
    await scaled.wanted(3)
    assert await scaled.told()
    await scaled.registered.apps.delete("a")
    await eventually(lambda: scaled.registered.gone("ear"))
    assert await scaled.told() == []
    assert await Registry(bench.broker, COMPONENTS).keys() == []
    await scaled.deployed()
    await scaled.wanted(3)
