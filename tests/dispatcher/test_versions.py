"""Versions of apps: marked when new requests get another one, removed when nothing can run on them any more."""

from __future__ import annotations

import time

from broker.connection import Broker
from broker.registry import Registry
from broker.subjects import APPS
from cornstalk.messages import LONGEST_DEADLINE, decode, encode
from cornstalk.records import AppRecord
from dispatcher.versions import JUST_DEPLOYED, KEPT, Versions
from tests.dispatcher.harness import Bench, newer
from tests.waiting import eventually

OLD = time.time() - 30 * 86_400


def record(version: str, *, deployed_at: float = OLD, retired_at: float = 0.0) -> AppRecord:
    return AppRecord(name="a", version=version, source="", deployed_at=deployed_at, retired_at=retired_at)


async def put(broker: Broker, *versions: AppRecord, current: str | None) -> Registry:
    apps = Registry(broker, APPS)
    for version in versions:
        await apps.put(f"a.{version.version}", encode(version))
        if version.version == current:
            await apps.put("a", encode(version))
    return apps


async def retired(apps: Registry) -> dict[str, float]:
    """When each version was marked, 0 for one that is not."""
    return {key: decode(AppRecord, entry.data).retired_at for key, entry in (await apps.entries("a.")).items()}


async def test_a_version_goes_when_it_was_replaced_longer_ago_than_a_request_lives(bench: Bench) -> None:
    assert KEPT > LONGEST_DEADLINE
    long_ago, lately = time.time() - KEPT - 1, time.time() - LONGEST_DEADLINE
    apps = await put(
        bench.broker,
        record("1", retired_at=long_ago),
        record("2", retired_at=lately),
        record("3"),
        record("4", retired_at=long_ago),  # it was replaced, and is deployed again
        current="4",
    )
    began = time.time()
    await bench.start("--poll", "0.1", module="dispatcher.operator")

    async def swept() -> dict[str, float] | None:
        marks = await retired(apps)
        return marks if marks["a.4"] == 0.0 else None

    marks = await eventually(swept, within=10)
    assert marks is not None
    assert marks.keys() == {"a.2", "a.3", "a.4"}
    assert marks["a.2"] == lately
    assert began <= marks["a.3"] <= time.time()
    assert (await apps.get("a")) is not None


async def test_of_a_removed_app_all_versions_are_marked(broker: Broker) -> None:
    apps = await put(broker, record("1"), record("2", retired_at=time.time() - KEPT - 1), current=None)
    await Versions(broker).round()
    marks = await retired(apps)
    assert marks.keys() == {"a.1"}
    assert marks["a.1"] > 0


async def test_one_that_is_just_being_deployed_is_not_marked(broker: Broker) -> None:
    """A gateway writes the version, then the name: marked in between, it would be removed when it is replaced."""
    apps = await put(broker, record("1", deployed_at=time.time() - JUST_DEPLOYED / 2), current=None)
    await Versions(broker).round()
    assert await retired(apps) == {"a.1": 0.0}


async def test_versions_of_an_app_that_a_newer_release_deployed_are_left_alone(broker: Broker) -> None:
    apps = await put(broker, record("1", retired_at=OLD), record("2"), current=None)
    await apps.put("a", newer(record("2")))
    await Versions(broker).round()
    assert await retired(apps) == {"a.1": OLD, "a.2": 0.0}


async def test_one_that_was_deployed_again_meanwhile_stays(broker: Broker) -> None:
    apps = await put(broker, record("1", retired_at=OLD), current=None)
    read = await apps.get("a.1")
    assert read is not None
    again = await apps.put("a.1", encode(record("1", deployed_at=time.time())))
    await apps.delete("a.1", read.revision)
    left = await apps.get("a.1")
    assert left is not None
    assert left.revision == again
    await apps.delete("a.1", again)
    assert await apps.get("a.1") is None
