"""Which components there must be: as the deployed apps say, and as long as a running request needs them."""

from __future__ import annotations

import logging

import msgspec

from broker import topology
from broker.connection import Broker
from broker.errors import BrokerError, Rejected
from broker.facts import Facts
from broker.registry import Registry
from broker.subjects import APPS, COMPONENTS, DECISIONS, finish, parse_run
from cornstalk.messages import Accepted, encode
from cornstalk.records import AppRecord, ComponentRecord, ComponentSpec
from dispatcher.registered import decoded, registered

log = logging.getLogger(__name__)


class Reconciler:
    """Makes queues and component records what the apps bucket says. Holds nothing between two rounds. Nobody else
    writes the records, but the Scaler of the same operator, between two rounds.

    A component of several apps is one record and one queue. One that no app names keeps its queue and its workers until
    nothing waits or runs in it and no running request was accepted by an app version that names it; then it goes.
    A crash at any line is mended by the next round.
    """

    def __init__(
        self, broker: Broker, replicas: int, ack_wait: float, autoscaled: bool = False, copies: int = 1
    ) -> None:
        """`replicas`: worker processes of a new component, and of one that was autoscaled and no longer is; `ack_wait`
        of its queue in seconds; `copies` of its queue in a NATS cluster.
        """
        self._broker, self._replicas, self._ack_wait, self._autoscaled = broker, replicas, ack_wait, autoscaled
        self._copies = copies
        self._facts = Facts(broker)
        self._apps = Registry(broker, APPS)
        self._components = Registry(broker, COMPONENTS)
        self._decisions = Registry(broker, DECISIONS)
        self._made: set[str] = set()  # queues this process has made or checked

    async def round(self) -> None:
        """One round. A component that cannot be made holds up no other one. Raises BrokerError."""
        specs, users = await self._wanted()
        records = await registered(ComponentRecord, self._components)
        for component in sorted(specs.keys() | records.keys()):
            try:
                if (spec := specs.get(component)) is not None:
                    await self._keep(component, spec, tuple(users[component]), records.get(component))
                else:
                    await self._give_up(records[component])
            except BrokerError as error:
                log.warning("component %s: %s", component, error)

    async def _wanted(self) -> tuple[dict[str, ComponentSpec], dict[str, list[str]]]:
        """What each component of the deployed apps is, and the names of those apps."""
        specs: dict[str, ComponentSpec] = {}
        users: dict[str, list[str]] = {}
        for key, app in sorted((await registered(AppRecord, self._apps)).items()):
            if "." in key:
                continue  # an older version: its running requests hold what they need
            for component, spec in app.components.items():
                specs[component] = spec
                users.setdefault(component, []).append(app.name)
        return specs, users

    async def _keep(
        self, component: str, spec: ComponentSpec, apps: tuple[str, ...], old: ComponentRecord | None
    ) -> None:
        """The queue first, so that an active record means: it is there."""
        if component not in self._made or old is None or old.state != "active":
            await topology.ensure_component(self._broker, component, ack_wait=self._ack_wait, copies=self._copies)
            self._made.add(component)
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
            log.info("component %s serves %s", component, ", ".join(apps))

    def _replicas_of(self, record: ComponentRecord) -> int:
        """As they are; unless they were autoscaled, maybe to zero, and nobody does so any more."""
        return self._replicas if record.autoscaled and not self._autoscaled else record.replicas

    async def _give_up(self, record: ComponentRecord) -> None:
        """`draining` is written last of all, for it ends the workers; then the apps are looked at once more."""
        if record.state == "active":
            unused = msgspec.structs.replace(
                record, apps=(), replicas=self._replicas_of(record), autoscaled=self._autoscaled
            )
            if unused != record:
                await self._write(unused)
            if not await self._idle(record.id):
                return
            await self._write(msgspec.structs.replace(record, apps=(), state="draining"))
        if record.id in (await self._wanted())[0]:
            return  # deployed again: the next round keeps it
        await topology.remove_component(self._broker, record.id)
        self._made.discard(record.id)
        await self._decisions.delete(record.id)
        await self._components.delete(record.id)
        log.info("component %s is drained and gone", record.id)

    async def _idle(self, component: str) -> bool:
        try:
            load = await topology.backlog(self._broker, component)
        except Rejected:
            return True  # its queue is gone already
        if any(load.pending.values()) or any(load.in_flight.values()):
            return False
        return not await self._needed(component)

    async def _needed(self, component: str) -> bool:
        """Whether a request that has not ended began on an app version that names the component."""
        apps = (await registered(AppRecord, self._apps)).values()
        users = {(app.name, app.version) for app in apps if component in app.components}
        async for stored in self._facts.accepted():
            request = parse_run(stored.subject).request
            fact = decoded(Accepted, request, stored.data)
            if fact is None or (fact.app, fact.app_version) not in users:
                continue
            if await self._facts.last(finish(request)) is None:
                return True
        return False

    async def _write(self, record: ComponentRecord) -> None:
        await self._components.put(record.id, encode(record))
