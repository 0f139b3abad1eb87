"""Operators that die at any of their awaits, now and then two at once, against a set: what must be there, and no more.

Nothing that holds an item, or that a running request may need, is ever taken away. CORNSTALK_SOAK=long takes many more.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import pytest

from broker import topology
from broker.connection import Broker
from broker.errors import BrokerError, NoStream
from broker.facts import Facts
from broker.registry import Registry
from broker.requests import Message
from broker.server import Server
from broker.subjects import APPS, AUTOSCALE, COMPONENTS, QUEUE_HINT, accepted, finish, work_stream
from broker.work import publish_item
from cornstalk.messages import Accepted, Finish, WorkItem, decode, encode
from cornstalk.records import AppRecord, ComponentRecord, ComponentSpec, ScalePolicy
from dispatcher.lock import Lock
from dispatcher.scaler import Scaler
from dispatcher.topology import Reconciler
from tests.mortal import Life
from tests.waiting import eventually

LONG: Final = os.environ.get("CORNSTALK_SOAK") == "long"
SEEDS: Final = range(60 if LONG else 6)
ACTIONS: Final = 60
STEPS: Final = 120
"""How often the tasks of an operator go on until it dies, at most."""
PARTS: Final = ("ear", "eye", "voice")
NAMES: Final = ("a", "b")
POLICY: Final = ScalePolicy(min=1, max=5, target=2, window=0, cooldown=0)
WITHIN: Final = 15.0


async def operator(broker: Broker) -> None:
    """What `python -m dispatcher.operator --autoscale` does while it believes that it holds the lock."""
    reconciler, scaler = Reconciler(broker, replicas=1, ack_wait=15.0, autoscaled=True), Scaler(broker)

    async def ask(message: Message) -> None:
        reconciler.ask(message.data.decode())

    await broker.subscribe_core(QUEUE_HINT, ask)
    while True:
        with suppress(BrokerError):
            await reconciler.round()
            await scaler.round()
        await asyncio.sleep(0.02)


class Model:
    """What clients have done, and what must be there because of it."""

    def __init__(self, broker: Broker, rnd: random.Random) -> None:
        self.broker, self.rnd = broker, rnd
        self.apps, self.components = Registry(broker, APPS), Registry(broker, COMPONENTS)
        self.deployed: dict[str, AppRecord] = {}
        self.left: list[AppRecord] = []  # removed or replaced, the newest last
        self.items: Counter[str] = Counter()
        self.running: dict[str, AppRecord] = {}  # request -> what it began on
        self._versions = 0

    def users(self, component: str) -> tuple[str, ...]:
        return tuple(sorted(name for name, app in self.deployed.items() if component in app.components))

    def wanted(self) -> set[str]:
        needed = {c for app in (*self.deployed.values(), *self.running.values()) for c in app.components}
        return needed | {c for c in PARTS if self.items[c]}

    async def act(self) -> None:
        """One of what may be done now."""
        may: list[Callable[[], Awaitable[None]]] = [self.deploy]
        may += [self.remove, self.accept, self.load, self.load] if self.deployed else []
        may += [self.late] if self.left else []
        may += [self.end, self.send] if self.running else []
        may += [self.take] if any(self.items.values()) else []
        await self.rnd.choice(may)()

    async def deploy(self) -> None:
        """Returns when there are queues, as a deploy does."""
        self._versions += 1
        parts = self.rnd.sample(PARTS, self.rnd.randint(1, len(PARTS)))
        specs = {part: ComponentSpec(kind="k", task="m:T", identity={"model": part}) for part in parts}
        app = AppRecord(name=self.rnd.choice(NAMES), version=f"{self._versions}", source="", components=specs)
        for key in (f"{app.name}.{app.version}", app.name):
            await self.apps.put(key, encode(app))
        self.left += [old] if (old := self.deployed.get(app.name)) is not None else []
        self.deployed[app.name] = app

        async def served() -> bool:
            records = [await self.record(part) for part in parts]
            return all(r is not None and r.state == "active" and app.name in r.apps for r in records)

        await eventually(served, within=WITHIN)

    async def remove(self) -> None:
        name = self.rnd.choice(sorted(self.deployed))
        await self.apps.delete(name)
        self.left.append(self.deployed.pop(name))

    async def accept(self) -> None:
        await self._accept(self.deployed[self.rnd.choice(sorted(self.deployed))])

    async def late(self) -> None:
        """A request on its way in while its app went: its queues may be going, or gone."""
        await self._accept(app := self.left[-1])
        for component in app.components:
            await self._send(app, component)

    async def send(self) -> None:
        app = self.running[self.rnd.choice(sorted(self.running))]
        await self._send(app, self.rnd.choice(sorted(app.components)))

    async def _send(self, app: AppRecord, component: str) -> None:
        """An item of a running request, as a dispatcher sends it: it asks for a queue that is not there."""
        item = self._item(component)

        async def sent() -> bool:
            try:
                await publish_item(self.broker, item, within=0.2)
            except NoStream:
                await self.broker.publish_core(QUEUE_HINT, f"{app.name}.{app.version}".encode())
                return False
            return True

        await eventually(sent, within=WITHIN)
        self.items[component] += 1

    async def _accept(self, app: AppRecord) -> None:
        request = uuid.uuid4().hex
        fact = Accepted(request=request, tenant="t", app=app.name, app_version=app.version, deadline=time.time() + 60)
        await self._put(accepted(request), encode(fact))
        self.running[request] = app

    async def end(self) -> None:
        request = self.rnd.choice(sorted(self.running))
        await self._put(finish(request), encode(Finish(status="done")))
        del self.running[request]

    async def load(self) -> None:
        component = self.rnd.choice(sorted({c for app in self.deployed.values() for c in app.components}))
        for _ in range(self.rnd.randint(1, 6)):
            await publish_item(self.broker, self._item(component))
            self.items[component] += 1

    async def take(self) -> None:
        component = self.rnd.choice(sorted(c for c in PARTS if self.items[c]))
        await self.broker.api(f"STREAM.PURGE.{work_stream(component)}")
        self.items[component] = 0

    async def nothing_lost(self) -> None:
        for component in PARTS:
            if self.items[component]:
                info = await self.broker.api(f"STREAM.INFO.{work_stream(component)}")
                assert info["state"]["messages"] == self.items[component], component

    async def settled(self) -> bool:
        """Whether what must be there is there, and nothing else, with as many workers as its items ask for."""
        if set(await topology.components(self.broker)) != self.wanted():
            return False
        if set(await self.components.keys()) != self.wanted():
            return False
        for component in self.wanted():
            record = await self.record(component)
            assert record is not None
            replicas = max(1, min(5, -(-self.items[component] // 2)))
            if (record.state, record.apps, record.replicas) != ("active", self.users(component), replicas):
                return False
            if (await topology.backlog(self.broker, component)).pending["batch"] != self.items[component]:
                return False
        return True

    async def record(self, component: str) -> ComponentRecord | None:
        entry = await self.components.get(component)
        return None if entry is None else decode(ComponentRecord, entry.data)

    def _item(self, component: str) -> WorkItem:
        request, deadline = uuid.uuid4().hex, time.time() + 60
        return WorkItem(
            request=request, node="n", gen=0, component=component, lane="batch", tenant="t", deadline=deadline
        )

    async def _put(self, subject: str, data: bytes) -> None:
        await Facts(self.broker).put(subject, data, deadline=time.time() + 10, ttl=600)


async def succeed(server: Server, rnd: random.Random, lives: list[Life]) -> None:
    """One or two operators, until cancelled: who dies is followed by another one."""
    while True:
        for life in [life for life in lives if life.dead]:
            await life.gone()
            lives.remove(life)
        while len(lives) < 1 + (rnd.random() < 0.2):
            lives.append(life := Life(server, "operator", rnd.randint(1, STEPS)))
            life.start(operator)
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("number", SEEDS)
async def test_operators_that_die_leave_what_must_be_there(nats_server: Server, broker: Broker, number: int) -> None:
    rnd = random.Random(number)
    model = Model(broker, rnd)
    for component in PARTS:
        await Registry(broker, AUTOSCALE).put(component, encode(POLICY))
    lives: list[Life] = []
    try:
        async with asyncio.TaskGroup() as both:
            succeeding = both.create_task(succeed(nats_server, rnd, lives))
            for _ in range(ACTIONS):
                await model.act()
                await model.nothing_lost()
            succeeding.cancel()
        for life in lives:
            life.end()
            await life.gone()
        lives.append(last := Life(nats_server, "operator"))
        last.start(operator)
        await eventually(model.settled, within=40.0)  # steps up are limited: 4 more or twice as many in 15 s
        await model.nothing_lost()
    finally:
        for life in lives:
            life.end()
            await life.gone()


async def test_of_operators_that_fight_for_the_lock_one_at_a_time_acts(nats_server: Server, broker: Broker) -> None:
    """The holder dies: until its record expires nobody acts, then one of the others."""
    locks: dict[Life, Lock] = {}
    for _ in range(3):
        life = Life(nats_server, "operator")

        async def contend(broker: Broker, life: Life = life) -> None:
            locks[life] = Lock(broker, "operator")
            await locks[life].run()

        life.start(contend)

    async def one_holds() -> bool:
        holding = sum(lock.held for lock in locks.values())
        assert holding <= 1
        return holding == 1

    try:
        await eventually(lambda: len(locks) == 3)
        await eventually(one_holds)
        life, holder = next((life, lock) for life, lock in locks.items() if lock.held)
        life.end()
        await eventually(lambda: not holder.held, within=10.0)
        await eventually(one_holds, within=20.0)
        assert not holder.held
    finally:
        for life in locks:
            life.end()
            await life.gone()
