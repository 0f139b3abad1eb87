"""Streams, consumers and buckets are what the design says, however often and by whomever they are ensured."""

from __future__ import annotations

import asyncio
import time

import pytest

from broker import topology
from broker.connection import Broker
from broker.errors import NoStream, Rejected, TopologyError
from broker.server import Server
from broker.streams import work_queue
from tests.waiting import eventually

SECOND = 1_000_000_000


async def config(broker: Broker, stream: str) -> dict[str, object]:
    found: dict[str, object] = (await broker.api(f"STREAM.INFO.{stream}"))["config"]
    return found


async def consumer(broker: Broker, stream: str, name: str) -> dict[str, object]:
    found: dict[str, object] = (await broker.api(f"CONSUMER.INFO.{stream}.{name}"))["config"]
    return found


async def test_settings_that_the_rules_rest_on(broker: Broker) -> None:
    await topology.ensure_component(broker, "llm-a")
    for stream, subject in (("RUNS", "run.>"), ("CHUNKS", "chunk.>")):
        found = await config(broker, stream)
        assert (found["storage"], found["discard"], found["retention"]) == ("file", "new", "limits")
        assert found["allow_direct"]
        assert found["allow_msg_ttl"]
        assert found["republish"] == {"src": subject, "dest": f"seen.{subject}"}
    assert (await config(broker, "RUNS"))["max_msgs"] == 200_000
    work = await config(broker, "WORK_llm-a")
    assert (work["retention"], work["discard"], work["max_age"]) == ("workqueue", "new", 0)
    assert (work["max_msgs_per_subject"], work["discard_new_per_subject"]) == (10_000, True)
    assert work["duplicate_window"] == 300 * SECOND
    for stream, name, ack_wait in (
        ("RUNS", "dispatch", 2),
        ("DRIVE", "drive", 15),
        ("WORK_llm-a", "interactive", 15),
        ("WORK_llm-a", "batch", 15),
    ):
        found = await consumer(broker, stream, name)
        assert (found["ack_policy"], found["max_deliver"], found["ack_wait"]) == ("explicit", -1, ack_wait * SECOND)
        assert (found["max_ack_pending"], found["max_waiting"]) == (4096, 512)
    assert (await config(broker, "KV_workers"))["max_age"] == 10 * SECOND
    assert (await config(broker, "KV_apps"))["max_age"] == 0
    assert (await config(broker, "DLQ"))["max_age"] == 7 * 86400 * SECOND


async def test_no_stream_grows_for_ever_or_drops_what_it_holds(broker: Broker) -> None:
    """Each is bounded by bytes and refuses what is new. Of usage the oldest may go: nobody waits for it."""
    await topology.ensure_component(broker, "a")
    names = (await broker.api("STREAM.NAMES"))["streams"]
    assert {"RUNS", "CHUNKS", "DRIVE", "UPLOADS", "DLQ", "WORK_a", "KV_apps", "KV_workers", "KV_locks"} <= set(names)
    for name in names:
        found = await config(broker, name)
        assert (found["discard"], found["storage"]) == ("old" if name == "USAGE" else "new", "file"), name
        limit = found["max_bytes"]
        assert isinstance(limit, int)
        assert 0 < limit <= 512 << 20, name


async def test_a_setting_that_the_server_ignores_is_an_error(broker: Broker) -> None:
    """Older servers take unknown settings without a word: what is echoed counts."""
    with pytest.raises(TopologyError, match="from_the_future"):
        await topology._ensure_stream(broker, {**work_queue("x", 10, 1 << 20), "from_the_future": True}, 1)


async def test_ensuring_again_changes_nothing_and_loses_nothing(broker: Broker) -> None:
    await broker.publish_stored("run.a.cancel", b"x", deadline=time.time() + 5)
    before = await broker.api("STREAM.INFO.RUNS")
    await topology.ensure_core(broker)
    after = await broker.api("STREAM.INFO.RUNS")
    assert (before["config"], before["created"]) == (after["config"], after["created"])
    assert after["state"]["messages"] == 1


async def test_many_may_ensure_at_once(nats_server: Server) -> None:
    brokers = [await Broker.connect(nats_server.url, name="test", token=nats_server.token) for _ in range(4)]
    await asyncio.gather(*(topology.ensure_core(broker) for broker in brokers))
    await asyncio.gather(*(topology.ensure_component(broker, "a") for broker in brokers))
    assert await topology.components(brokers[0]) == ["a"]
    for broker in brokers:
        await broker.close()


async def test_changed_limits_are_updated_in_place(broker: Broker) -> None:
    await topology.ensure_component(broker, "a", max_msgs_per_lane=5)
    await broker.publish_stored("work.a.batch", b"x", deadline=time.time() + 5)
    await topology.ensure_component(broker, "a", max_msgs_per_lane=7, ack_wait=1)
    load = await topology.backlog(broker, "a")
    assert (load.max_msgs, load.pending) == (7, {"interactive": 0, "batch": 1})
    assert (await consumer(broker, "WORK_a", "batch"))["ack_wait"] == SECOND


async def test_a_stream_that_cannot_be_changed_is_an_error(broker: Broker) -> None:
    await broker.api("STREAM.CREATE.WORK_a", {"name": "WORK_a", "subjects": ["work.a.*"], "storage": "memory"})
    with pytest.raises(TopologyError, match="WORK_a"):
        await topology.ensure_component(broker, "a")


async def test_thirty_components_fit_in_the_default_limits(broker: Broker) -> None:
    names = [f"c{n:02}" for n in range(30)]
    for name in names:
        await topology.ensure_component(broker, name)
    assert await topology.components(broker) == names


async def test_remove_component(broker: Broker) -> None:
    await topology.ensure_component(broker, "a")
    await topology.remove_component(broker, "a")
    await topology.remove_component(broker, "a")
    assert await topology.components(broker) == []
    with pytest.raises(Rejected):
        await topology.backlog(broker, "a")


async def test_a_closed_queue_takes_nothing_and_gives_what_it_has(broker: Broker) -> None:
    await topology.ensure_component(broker, "a")
    first = await broker.publish_stored("work.a.batch", b"1", deadline=time.time() + 5, msg_id="1")
    await topology.close_component(broker, "a")
    await topology.close_component(broker, "a")
    with pytest.raises(NoStream):
        await broker.publish_stored("work.a.batch", b"2", deadline=time.time() + 0.3, msg_id="2")
    assert (await topology.backlog(broker, "a")).pending["batch"] == 1
    sub = await broker.js.pull_subscribe_bind("batch", stream="WORK_a")
    (message,) = await sub.fetch(1)
    assert message.data == b"1"
    await topology.ensure_component(broker, "a")
    again = await broker.publish_stored("work.a.batch", b"1", deadline=time.time() + 5, msg_id="1")
    assert (again.seq, again.duplicate) == (first.seq, True)
    assert (await broker.publish_stored("work.a.batch", b"2", deadline=time.time() + 5, msg_id="2")).seq == 2
    await topology.close_component(broker, "b")
    assert await topology.components(broker) == ["a"]


async def test_component_names_are_tokens(broker: Broker) -> None:
    for name in ("", "a.b", "*", "a b"):
        with pytest.raises(ValueError, match="token"):
            await topology.ensure_component(broker, name)


async def test_everything_is_there_after_a_kill(broker: Broker, nats_server: Server) -> None:
    await topology.ensure_component(broker, "a")
    nats_server.kill()
    nats_server.start()
    await eventually(lambda: broker.connected)
    assert await topology.components(broker) == ["a"]
    assert (await consumer(broker, "WORK_a", "batch"))["ack_wait"] == 15 * SECOND


async def test_backlog_counts_waiting_and_running(broker: Broker) -> None:
    await topology.ensure_component(broker, "a")
    for _ in range(3):
        await broker.publish_stored("work.a.interactive", b"x", deadline=time.time() + 5)
    sub = await broker.js.pull_subscribe_bind("interactive", stream="WORK_a")
    (message,) = await sub.fetch(1)
    load = await topology.backlog(broker, "a")
    assert (load.pending["interactive"], load.in_flight["interactive"]) == (2, 1)
    await message.ack_sync()
    assert (await topology.backlog(broker, "a")).in_flight["interactive"] == 0
