"""The operator makes what the apps need, and takes it away when nobody needs it any more."""

from __future__ import annotations

import asyncio
import signal
import time
import uuid
from contextlib import suppress

import pytest

from broker import topology
from broker.connection import Broker
from broker.errors import NoStream, Rejected
from broker.registry import Registry
from broker.server import Server
from broker.subjects import APPS, COMPONENTS
from broker.work import publish_item
from cornstalk.batch import Begun, Summary
from cornstalk.messages import WorkItem, decode, encode
from cornstalk.records import AppRecord, ComponentRecord, ComponentSpec
from dispatcher.lock import Lock
from dispatcher.topology import Reconciler
from gateway.batch_store import JobStore
from tests.dispatcher.harness import Bench, node
from tests.waiting import eventually

EAR = ComponentSpec(kind="encoder", task="cornstalk.tasks.encoder:Encoder", identity={"model": "tiny.en"})
VOICE = ComponentSpec(kind="generator", task="cornstalk.tasks.generator:Generator", identity={"model": "hibari"})

BEGUN = Begun(
    app="a",
    app_version="1",
    tenant="t",
    priority=0,
    deadline=time.time() + 600,
    encoding="json",
    trace="",
    total=1,
    parts=((0, 1, 1),),
    begun_at=time.time(),
)


def item_of(component: str) -> WorkItem:
    request, deadline = uuid.uuid4().hex, time.time() + 60
    return WorkItem(request=request, node="n", gen=0, component=component, lane="batch", tenant="t", deadline=deadline)


class Registered:
    """Deploys and removes apps as a gateway does."""

    def __init__(self, broker: Broker) -> None:
        self.apps, self._components = Registry(broker, APPS), Registry(broker, COMPONENTS)

    async def deploy(self, name: str, **components: ComponentSpec) -> None:
        record = AppRecord(name=name, version="1", source="", components=components, deployed_at=time.time())
        await self.apps.put(f"{name}.1", encode(record))
        await self.apps.put(name, encode(record))

    async def component(self, name: str) -> ComponentRecord | None:
        entry = await self._components.get(name)
        return decode(ComponentRecord, entry.data) if entry else None

    async def serves(self, name: str, *apps: str) -> ComponentRecord:
        async def there() -> ComponentRecord | None:
            record = await self.component(name)
            return record if record is not None and record.apps == apps else None

        record = await eventually(there)
        assert record is not None
        return record

    async def gone(self, name: str) -> bool:
        return await self.component(name) is None


async def operate(bench: Bench) -> Registered:
    await bench.start("--poll", "0.1", module="dispatcher.operator")
    return Registered(bench.broker)


async def test_equal_tasks_of_two_apps_share_a_component_and_the_last_one_drains_it(bench: Bench) -> None:
    registered = await operate(bench)
    await registered.deploy("spoken", ear=EAR, voice=VOICE)
    await registered.deploy("transcribe", ear=EAR)
    record = await registered.serves("ear", "spoken", "transcribe")
    assert (record.kind, record.task, record.identity) == ("encoder", EAR.task, {"model": "tiny.en"})
    assert (record.state, record.replicas) == ("active", 2)
    await registered.serves("voice", "spoken")
    assert await topology.components(bench.broker) == ["ear", "voice"]
    await registered.apps.delete("spoken")
    await registered.serves("ear", "transcribe")
    await eventually(lambda: registered.gone("voice"))
    assert await topology.components(bench.broker) == ["ear"]
    await registered.apps.delete("transcribe")
    await eventually(lambda: registered.gone("ear"))
    assert await topology.components(bench.broker) == []
    await registered.deploy("transcribe", ear=EAR)
    await registered.serves("ear", "transcribe")
    assert await topology.components(bench.broker) == ["ear"]


async def test_a_component_stays_while_something_waits_in_it_or_a_request_may_need_it(bench: Bench) -> None:
    registered = await operate(bench)
    await registered.deploy("a", ear=EAR, voice=VOICE)
    await registered.serves("ear", "a")
    await registered.serves("voice", "a")
    await publish_item(bench.broker, item_of("ear"))
    request = await bench.accept()  # of app "a", version "1"
    await registered.apps.delete("a")
    await registered.serves("ear")
    assert (await registered.serves("voice")).state == "active"
    await bench.finish(request)
    await eventually(lambda: registered.gone("voice"))
    record = await registered.component("ear")
    assert record is not None
    assert record.state == "active"
    await bench.broker.api("STREAM.PURGE.WORK_ear")
    await eventually(lambda: registered.gone("ear"))
    with pytest.raises(Rejected):
        await topology.backlog(bench.broker, "ear")


async def test_a_component_stays_while_a_batch_job_may_need_it(bench: Bench) -> None:
    """Between two of its rows none of them runs."""
    registered = await operate(bench)
    await registered.deploy("a", ear=EAR)
    await registered.deploy("b", voice=VOICE)
    await registered.serves("ear", "a")
    await registered.serves("voice", "b")
    store = JobStore(bench.broker)
    await store.put_begun("j", BEGUN)
    await registered.apps.delete("a")
    await registered.apps.delete("b")
    await eventually(lambda: registered.gone("voice"))  # so the operator has looked
    await registered.serves("ear")
    await store.put_summary(Summary(job="j", rows=1, status="done", error=None, times={}), "json")
    await eventually(lambda: registered.gone("ear"))


async def test_a_request_that_comes_as_its_components_go_gets_them_back(bench: Bench) -> None:
    registered = await operate(bench)
    await bench.two_dispatchers()
    await registered.deploy("a", ear=EAR, voice=VOICE)
    await registered.serves("voice", "a")
    await registered.apps.delete("a")
    await eventually(lambda: registered.gone("ear"))
    await eventually(lambda: registered.gone("voice"))
    request = await bench.accept()  # of app "a", version "1"
    await bench.graph(request, node("n", component="ear"))
    record = await registered.serves("ear")
    assert (record.state, record.task) == ("active", EAR.task)
    await bench.until_items("n", component="ear")
    await bench.finish(request)
    await eventually(lambda: registered.gone("ear"))
    await eventually(lambda: registered.gone("voice"))


class Interleaved(Reconciler):
    """In which an item is sent as soon as the component has been found idle for the `look`-th time."""

    def __init__(self, broker: Broker, look: int) -> None:
        super().__init__(broker, replicas=1, ack_wait=15.0)
        self.sent: int | None = None  # where it stands in the queue, if that took it
        self._sender, self._looks_left = broker, look

    async def _idle(self, component: str) -> bool:
        idle = await super()._idle(component)
        self._looks_left -= 1
        if self._looks_left == 0:
            with suppress(NoStream):
                self.sent = await publish_item(self._sender, item_of(component), within=0.3)
        return idle


@pytest.mark.parametrize("look", [1, 2])
async def test_an_item_that_comes_as_its_queue_goes_is_kept_or_finds_none(broker: Broker, look: int) -> None:
    registered, operator = Registered(broker), Interleaved(broker, look)
    await registered.deploy("a", ear=EAR)
    await operator.round()
    await registered.apps.delete("a")
    await operator.round()
    if look == 1:  # it came before the queue was closed
        assert operator.sent == 1
        assert (await topology.backlog(broker, "ear")).pending["batch"] == 1
        assert (await registered.serves("ear")).state == "active"
        assert await publish_item(broker, item_of("ear"), within=2.0) == 2
    else:
        assert operator.sent is None
        assert await registered.gone("ear")


async def test_a_queue_without_a_record_is_looked_after(broker: Broker) -> None:
    """The operator that made it died before it wrote the record, and its app has gone since."""
    registered, operator = Registered(broker), Reconciler(broker, replicas=1, ack_wait=15.0)
    await registered.deploy("a", ear=EAR)
    await registered.apps.delete("a")
    await topology.ensure_component(broker, "ear")
    await publish_item(broker, item_of("ear"))
    for _ in range(2):
        await operator.round()
        assert (await registered.serves("ear")).task == EAR.task
    await broker.api("STREAM.PURGE.WORK_ear")
    await operator.round()
    assert await registered.gone("ear")
    assert await topology.components(broker) == []


async def test_the_core_is_made_and_a_second_operator_waits_for_the_first(nats_server: Server, broker: Broker) -> None:
    for stream in ("RUNS", "CHUNKS", "DLQ"):
        await broker.api(f"STREAM.DELETE.{stream}")
    bench = Bench(nats_server, broker)
    registered = Registered(broker)
    try:
        first = await bench.start("--poll", "0.1", module="dispatcher.operator")
        await registered.deploy("a", ear=EAR)
        await registered.serves("ear", "a")
        await broker.api("CONSUMER.INFO.RUNS.dispatch")
        await bench.start("--poll", "0.1", module="dispatcher.operator")
        first.kill(signal.SIGTERM)
        assert await first.gone() == 0
        await registered.deploy("b", voice=VOICE)
        await registered.serves("voice", "b")
    finally:
        await bench.close()


async def test_a_lock_has_one_holder_and_is_handed_over(broker: Broker) -> None:
    locks = [Lock(broker, "x") for _ in range(3)]
    tasks = [asyncio.create_task(lock.run()) for lock in locks]
    await eventually(lambda: any(lock.held for lock in locks))
    assert sum(lock.held for lock in locks) == 1
    holder = next(lock for lock in locks if lock.held)
    tasks.pop(locks.index(holder)).cancel()
    locks.remove(holder)
    await holder.release()
    await eventually(lambda: sum(lock.held for lock in locks) == 1 and not holder.held)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
