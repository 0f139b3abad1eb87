"""Records by key, with revisions; locks by create and heartbeat."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest

from broker.connection import Broker
from broker.errors import Conflict
from broker.registry import Registry
from broker.server import Server
from broker.streams import KEPT_DECISIONS
from broker.subjects import DECISIONS
from tests.broker.proxy import Proxy
from tests.waiting import eventually


async def test_empty_bucket(broker: Broker) -> None:
    registry = Registry(broker, "apps")
    assert await registry.keys() == []
    assert await registry.get("a") is None
    await registry.delete("a")


async def test_put_get_update_delete(broker: Broker) -> None:
    registry = Registry(broker, "apps")
    first = await registry.put("omni", b"1")
    assert await registry.get("omni") == (b"1", first)
    second = await registry.update("omni", b"2", first)
    with pytest.raises(Conflict):
        await registry.update("omni", b"3", first)
    assert await registry.get("omni") == (b"2", second)
    with pytest.raises(Conflict):
        await registry.create("omni", b"3")
    await registry.delete("omni")
    assert await registry.get("omni") is None
    with pytest.raises(Conflict):
        await registry.update("omni", b"3", second)
    await registry.create("omni", b"4")
    assert await registry.keys() == ["omni"]


async def test_keys_by_prefix(broker: Broker) -> None:
    registry = Registry(broker, "apps")
    for key in ("b.2", "a", "b.1", "b", "c"):
        await registry.put(key, key.encode())
    assert await registry.keys() == ["a", "b", "b.1", "b.2", "c"]
    assert await registry.keys("b.") == ["b.1", "b.2"]
    assert {key: entry.data for key, entry in (await registry.entries("b")).items()} == {
        "b": b"b",
        "b.1": b"b.1",
        "b.2": b"b.2",
    }


async def test_a_bucket_with_history_keeps_the_newest_of_each_key(broker: Broker) -> None:
    registry = Registry(broker, DECISIONS)
    assert await registry.history("a") == []
    for number in range(KEPT_DECISIONS + 3):
        await registry.put("a", b"%d" % number)
    await registry.put("a", b"%d" % number)  # sent again, for its confirmation was lost
    await registry.put("a.b", b"other")
    kept = [int(data) for data in await registry.history("a")]
    assert kept == list(range(KEPT_DECISIONS + 2, 3, -1))
    assert await registry.history("a.b") == [b"other"]
    assert (await registry.entries())["a"].data == b"%d" % number
    await registry.delete("a")
    assert await registry.history("a") == []


async def test_more_keys_than_one_answer_holds(broker: Broker) -> None:
    registry = Registry(broker, "components")
    await asyncio.gather(*(registry.put(f"k{n:04}", b"") for n in range(1100)))
    assert await registry.keys() == [f"k{n:04}" for n in range(1100)]


@pytest.mark.parametrize("key", ["", ".a", "a.", "a..b", "a b", "a>", "*", "a\r\nb"])
async def test_bad_keys_are_refused(shared_broker: Broker, key: str) -> None:
    with pytest.raises(ValueError, match="not a key"):
        await Registry(shared_broker, "apps").put(key, b"")


async def test_one_of_many_gets_a_lock(broker: Broker) -> None:
    registry = Registry(broker, "locks")
    results = await asyncio.gather(*(registry.create("operator", b"%d" % n) for n in range(20)), return_exceptions=True)
    (winner,) = [n for n, result in enumerate(results) if isinstance(result, int)]
    assert all(isinstance(result, Conflict) for n, result in enumerate(results) if n != winner)
    entry = await registry.get("operator")
    assert entry is not None
    assert entry.data == b"%d" % winner


async def test_records_with_a_life_expire_unless_renewed(broker: Broker) -> None:
    config = (await broker.api("STREAM.INFO.KV_workers"))["config"]
    second = 1_000_000_000
    await broker.api("STREAM.UPDATE.KV_workers", {**config, "max_age": second, "duplicate_window": second})
    registry = Registry(broker, "workers")
    revision = await registry.create("c.w1", b"1")
    await registry.create("c.w2", b"1")
    began, beats = time.monotonic(), itertools.count(2)

    async def only_the_renewed_is_left() -> bool:
        nonlocal revision
        revision = await registry.update("c.w1", b"%d" % next(beats), revision)
        return await registry.keys() == ["c.w1"]

    await eventually(only_the_renewed_is_left, within=4, every=0.1)
    assert time.monotonic() - began > 0.9  # longer than a life


async def test_markers_of_other_tools_count_as_deleted(broker: Broker) -> None:
    registry = Registry(broker, "apps")
    kv = await broker.js.key_value("apps")
    await kv.put("a", b"1")
    assert (await registry.get("a")) == (b"1", 1)
    await kv.delete("a")
    assert await registry.get("a") is None
    assert await registry.keys() == []
    await registry.create("a", b"2")
    assert (await kv.get("a")).value == b"2"


async def test_own_update_whose_answer_was_lost(broker: Broker, nats_server: Server) -> None:
    async with Proxy(nats_server.url) as proxy:
        connection = await Broker.connect(proxy.url, name="mine", token=nats_server.token)
        mine, other = Registry(connection, "locks"), Registry(broker, "locks")
        proxy.muted = True
        creating = asyncio.create_task(mine.create("operator", b"me"))
        entry = await eventually(lambda: other.get("operator"))
        proxy.cut()
        assert await creating == entry.revision
        await connection.close()
