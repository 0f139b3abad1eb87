"""Components as a person wants to see them: who uses each, what waits, who works."""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict

from broker.connection import Broker
from broker.errors import BrokerError
from broker.registry import Registry
from broker.subjects import COMPONENTS, WORKERS
from broker.topology import backlog
from cornstalk.messages import decode
from cornstalk.records import ComponentRecord, WorkerBeat


async def describe_components(broker: Broker) -> list[dict[str, Any]]:
    """One entry per registered component, by id."""
    registry, beats = Registry(broker, COMPONENTS), await _beats(broker)
    found = []
    for key in sorted(await registry.keys()):
        stored = await registry.get(key)
        if stored is not None:
            found.append(await _describe(broker, decode(ComponentRecord, stored.data), beats))
    return found


async def describe_component(broker: Broker, record: ComponentRecord) -> dict[str, Any]:
    """One entry, as of `describe_components`."""
    return await _describe(broker, record, await _beats(broker))


async def _describe(broker: Broker, record: ComponentRecord, beats: list[WorkerBeat]) -> dict[str, Any]:
    try:
        depth = await backlog(broker, record.id)
        queue = {"pending": depth.pending, "in_flight": depth.in_flight}
    except BrokerError:
        queue = {"pending": {}, "in_flight": {}}  # the operator has not made it yet, or has just removed it
    return {
        "id": record.id,
        "kind": record.kind,
        "task": record.task,
        "apps": record.apps,
        "state": record.state,
        "replicas": record.replicas,
        "autoscaled": record.autoscaled,
        **queue,
        "workers": [asdict(beat) for beat in beats if beat.component == record.id],
    }


async def _beats(broker: Broker) -> list[WorkerBeat]:
    workers = Registry(broker, WORKERS)
    stored = [await workers.get(key) for key in sorted(await workers.keys())]
    return [decode(WorkerBeat, s.data) for s in stored if s is not None]
