"""Which components there must be: as the deployed apps say, and as long as a running request needs them."""

from __future__ import annotations

import logging
from typing import Any, Final

import msgspec

from broker import topology
from broker.connection import Broker
from broker.errors import BrokerError, Rejected
from broker.registry import Registry
from broker.subjects import APPS, COMPONENTS, DECISIONS
from cornstalk.messages import encode
from cornstalk.records import AppRecord, ComponentRecord, ComponentSpec
from dispatcher.needed import needed
from dispatcher.registered import registered

log = logging.getLogger(__name__)

MAX_ASKED: Final = 1024
"""App versions that can be asked for between two rounds."""


class Reconciler:
    """Makes queues and component records what the apps bucket says. Holds nothing between two rounds that is not said
    again. Nobody else writes the records, but the Scaler of the same operator, between two rounds.

    A component of several apps is one record and one queue. One that no app names keeps its queue and its workers until
    nothing waits or runs in it and no running request or batch job began on an app version that names it. Then its
    queue is closed, and if that is still so it goes: an item came in before, and was seen, or finds no queue, and the
    dispatcher that could not store it says so until there is one. A crash at any line is mended by the next round.
    """

    def __init__(
        self, broker: Broker, replicas: int, ack_wait: float, autoscaled: bool = False, copies: int = 1
    ) -> None:
        """`replicas`: worker processes of a new component, and of one that was autoscaled and no longer is; `ack_wait`
        of its queue in seconds; `copies` of its queue in a NATS cluster.
        """
        self._broker, self._replicas, self._ack_wait, self._autoscaled = broker, replicas, ack_wait, autoscaled
        self._copies = copies
        self._apps = Registry(broker, APPS)
        self._components = Registry(broker, COMPONENTS)
        self._decisions = Registry(broker, DECISIONS)
        self._made: set[str] = set()  # queues this process has made or checked
        self._asked: set[str] = set()  # versions that lack a queue, until the next round

    def ask(self, version: str) -> None:
        """A running request finds no queue: the next round makes sure of those of this version (its key in APPS)."""
        if len(self._asked) < MAX_ASKED:
            self._asked.add(version)

    async def round(self) -> None:
        """One round. A component that cannot be made holds up no other one. Raises BrokerError."""
        asked, self._asked = self._asked, set()
        apps = await registered(AppRecord, self._apps)
        records = await registered(ComponentRecord, self._components)
        strays = set(await topology.components(self._broker)) - records.keys()  # made by an operator that died then
        missed = _components_of(asked, apps)
        self._made -= missed
        specs, users = _wanted(apps, missed | strays)
        for component in sorted(specs.keys() | records.keys()):
            try:
                if (spec := specs.get(component)) is not None:
                    await self._keep(component, spec, tuple(users[component]), records.get(component))
                else:
                    await self._give_up(records[component])
            except BrokerError as error:
                log.warning("component %s: %s", component, error)

    async def _keep(
        self, component: str, spec: ComponentSpec, apps: tuple[str, ...], old: ComponentRecord | None
    ) -> None:
        """The queue first, so that an active record means: it is there."""
        if old is None or old.state != "active":
            self._made.discard(component)
        await self._open(component)
        new = ComponentRecord(
            id=component,
            kind=spec.kind,
            task=spec.task,
            identity=spec.identity,
            apps=apps,
            replicas=self._replicas if old is None else self._replicas_of(old),
            autoscaled=self._autoscaled,
        )
        if new != old:
            await self._write(new)
            log.info("component %s serves %s", component, ", ".join(apps) or "what began on older versions")

    def _replicas_of(self, record: ComponentRecord) -> int:
        """As they are; unless they were autoscaled, maybe to zero, and nobody does so any more."""
        return self._replicas if record.autoscaled and not self._autoscaled else record.replicas

    async def _give_up(self, record: ComponentRecord) -> None:
        """`draining` is written last of all, for it ends the workers; then the apps are looked at once more."""
        if not (await self._idle(record.id) and await self._closed(record.id)):
            await self._open(record.id)
            return await self._change(record, apps=(), state="active", replicas=self._replicas_of(record))
        await self._change(record, apps=(), state="draining")
        apps = await registered(AppRecord, self._apps)
        if record.id in _wanted(apps, _components_of(self._asked, apps))[0]:
            return  # deployed again, or missed: the next round keeps it
        await topology.remove_component(self._broker, record.id)
        self._made.discard(record.id)
        await self._decisions.delete(record.id)
        await self._components.delete(record.id)
        log.info("component %s is drained and gone", record.id)

    async def _open(self, component: str) -> None:
        if component not in self._made:
            await topology.ensure_component(self._broker, component, ack_wait=self._ack_wait, copies=self._copies)
            self._made.add(component)

    async def _closed(self, component: str) -> bool:
        """Closes its queue. Whether nothing came into it, and nobody who may need it, since it was found idle."""
        self._made.discard(component)
        await topology.close_component(self._broker, component)
        return await self._idle(component)

    async def _idle(self, component: str) -> bool:
        try:
            load = await topology.backlog(self._broker, component)
            if any(load.pending.values()) or any(load.in_flight.values()):
                return False
        except Rejected:
            self._made.discard(component)  # its queue is gone already
        apps = (await registered(AppRecord, self._apps)).values()
        return not await needed(self._broker, {(app.name, app.version) for app in apps if component in app.components})

    async def _change(self, record: ComponentRecord, **fields: Any) -> None:
        changed = msgspec.structs.replace(record, autoscaled=self._autoscaled, **fields)
        if changed != record:
            await self._write(changed)

    async def _write(self, record: ComponentRecord) -> None:
        await self._components.put(record.id, encode(record))


def _components_of(versions: set[str], apps: dict[str, AppRecord]) -> set[str]:
    return {component for version in versions & apps.keys() for component in apps[version].components}


def _wanted(apps: dict[str, AppRecord], also: set[str]) -> tuple[dict[str, ComponentSpec], dict[str, list[str]]]:
    """What each component of the deployed apps is, and the names of those apps; `also` what only an older version
    names: none.
    """
    specs: dict[str, ComponentSpec] = {}
    users: dict[str, list[str]] = {}
    for key, app in sorted(apps.items()):
        is_version = "." in key  # what began on it holds what it needs
        for component, spec in app.components.items():
            if is_version and component not in also:
                continue
            specs[component] = spec
            users.setdefault(component, []).extend(() if is_version else (app.name,))
    return specs, users
