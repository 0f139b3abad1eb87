"""How many workers each component shall have: looks at the queues, decides, and writes down why."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass
from typing import Final

import msgspec

from broker import topology
from broker.connection import Broker
from broker.errors import BrokerError
from broker.registry import Registry
from broker.subjects import AUTOSCALE, COMPONENTS, DECISIONS, WORKERS
from cornstalk.messages import encode
from cornstalk.records import ComponentRecord, Rule, ScaleDecision, ScalePolicy, WorkerBeat
from dispatcher.autoscale import Autoscaler, Verdict
from dispatcher.registered import decoded, registered

log = logging.getLogger(__name__)

GAP: Final = 30.0
"""Seconds without a look after which what was asked for before says nothing any more: all windows begin anew."""
HOLDS: Final[frozenset[Rule]] = frozenset({"window", "rate", "max", "cooldown", "slots"})
"""Rules that explain why nothing changes although something else is asked for."""


@dataclass
class _Seen:
    """What is remembered of a component. Soft: see Autoscaler."""

    autoscaler: Autoscaler
    told: ScaleDecision | None  # the newest that is stored
    at: float = 0.0  # of the last look, monotonic
    slots: int = 0  # of its engine; 0: no worker has said so yet


class Scaler:
    """Sets `replicas` of the component records; whoever runs workers follows them. KEDA takes its place on Kubernetes.

    The record is what holds. A decision is stored before it, so that no change is without its reason; after a crash in
    between, the next operator decides anew. What cannot be stored is forgotten, and decided anew.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._components, self._workers = Registry(broker, COMPONENTS), Registry(broker, WORKERS)
        self._policies, self._decisions = Registry(broker, AUTOSCALE), Registry(broker, DECISIONS)
        self._cpus = len(os.sched_getaffinity(0))
        self._seen: dict[str, _Seen] = {}

    async def round(self) -> None:
        """One look at each component. One that cannot be looked at holds up no other one. Raises BrokerError."""
        records = await registered(ComponentRecord, self._components)
        policies = await registered(ScalePolicy, self._policies)
        slots = {beat.component: beat.slots for beat in (await registered(WorkerBeat, self._workers)).values()}
        for component in self._seen.keys() - records.keys():
            del self._seen[component]
        for component, record in records.items():
            if record.state != "active":
                continue
            try:
                await self._look(record, policies.get(component, ScalePolicy()), slots.get(component, 0))
            except BrokerError as error:
                self._seen.pop(component, None)
                log.warning("component %s is not scaled: %s", component, error)

    async def _look(self, record: ComponentRecord, policy: ScalePolicy, slots: int) -> None:
        load = await topology.backlog(self._broker, record.id)
        seen = await self._remembered(record)
        seen.slots = slots or seen.slots
        policy = self._complete(policy, seen.slots)
        items = sum(load.pending.values()) + sum(load.in_flight.values())
        verdict = seen.autoscaler.step(policy, seen.at, items, record.replicas)
        if verdict.replicas == record.replicas and not _is_news(verdict, seen.told):
            return
        decision = ScaleDecision(
            component=record.id,
            at=time.time(),
            before=record.replicas,
            pending=load.pending,
            in_flight=load.in_flight,
            policy=policy,
            **verdict._asdict(),
        )
        await self._decisions.put(record.id, encode(decision))
        seen.told = decision
        if verdict.replicas != record.replicas:
            changed = msgspec.structs.replace(record, replicas=verdict.replicas)
            await self._components.put(record.id, encode(changed))
            log.info("%s: %d -> %d workers: %s", record.id, record.replicas, verdict.replicas, verdict.why)

    async def _remembered(self, record: ComponentRecord) -> _Seen:
        now = time.monotonic()
        seen = self._seen.get(record.id)
        if seen is None or now - seen.at > GAP:
            entry = await self._decisions.get(record.id)
            told = decoded(ScaleDecision, record.id, entry.data) if entry is not None else None
            slots = seen.slots if seen is not None else 0
            seen = self._seen[record.id] = _Seen(Autoscaler(now, record.replicas), told, slots=slots)
        seen.at = now
        return seen

    def _complete(self, policy: ScalePolicy, slots: int) -> ScalePolicy:
        """With what is worked out here in the place of each 0 that asks for it."""
        most = policy.max or max(2, self._cpus, policy.min)
        return msgspec.structs.replace(policy, max=most, target=policy.target or slots)


def _is_news(verdict: Verdict, told: ScaleDecision | None) -> bool:
    """A hold is told once, not at each look."""
    return verdict.rule in HOLDS and (told is None or (verdict.replicas, verdict.rule) != (told.replicas, told.rule))
