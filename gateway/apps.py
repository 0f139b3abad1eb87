"""Apps: deployed as source, stored in the registry, loaded where a request needs them."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from typing import Final

from broker.connection import Broker
from broker.registry import Registry
from broker.subjects import APPS, COMPONENTS, token
from cornstalk.app import App, load_app
from cornstalk.errors import AppError, Refused, UnknownApp
from cornstalk.messages import decode, encode
from cornstalk.records import AppRecord, ComponentRecord, ComponentSpec

LOADED: Final = 64
"""App versions kept loaded."""
SOURCE_LIMIT: Final = 256 * 1024
"""Bytes of an app file."""
QUEUE_WAIT: Final = 10.0
"""Seconds a deploy waits for the operator."""


class Apps:
    """Reads and writes the registry. What is loaded here can be loaded again from there: a crash loses nothing."""

    def __init__(self, broker: Broker) -> None:
        self._apps = Registry(broker, APPS)
        self._components = Registry(broker, COMPONENTS)
        self._loaded: OrderedDict[tuple[str, str], App] = OrderedDict()

    async def current(self, name: str) -> App:
        """The version that new requests get. Raises UnknownApp."""
        return self._load(await self._record(name, name))

    async def version(self, name: str, version: str) -> App:
        """The version on which a request began. Raises UnknownApp."""
        if (app := self._loaded.get((name, version))) is not None:
            return app
        return self._load(await self._record(name, f"{_key(name)}.{version}"))

    async def list(self) -> list[tuple[AppRecord, App]]:
        """Every deployed app, by name."""
        names = [key for key in await self._apps.keys() if "." not in key]
        records = [await self._record(name, name) for name in sorted(names)]
        return [(record, self._load(record)) for record in records]

    async def deploy(self, source: str) -> AppRecord:
        """Loads, stores, and waits for the operator to make the queues. Raises AppError, Refused (no operator)."""
        if len(source.encode()) > SOURCE_LIMIT:
            raise AppError(f"an app file has at most {SOURCE_LIMIT} bytes")
        app = await asyncio.to_thread(load_app, source)
        specs = {
            component: ComponentSpec(kind=type(task).kind, task=task.task_path, identity=task.model_dump(mode="json"))
            for component, task in app.components().items()
        }
        record = AppRecord(
            name=_key(app.name), version=app.version, source=source, components=specs, deployed_at=time.time()
        )
        data = encode(record)
        await self._apps.put(f"{app.name}.{app.version}", data)
        await self._apps.put(app.name, data)
        self._keep(app)
        await self._wait_for_queues(record)
        return record

    async def remove(self, name: str) -> AppRecord:
        """New requests are refused from here; running ones end. The operator drains components nobody else uses."""
        record = await self._record(name, name)
        await self._apps.delete(name)
        return record

    async def _wait_for_queues(self, record: AppRecord) -> None:
        end = time.monotonic() + QUEUE_WAIT
        for component in record.components:
            while (stored := await self._components.get(component)) is None or (
                decode(ComponentRecord, stored.data).state != "active"
            ):
                if time.monotonic() > end:
                    raise Refused(
                        f"{record.name} is stored, but nobody made the queue of {component}: "
                        "is `python -m dispatcher.operator` running?",
                        retry_after=5.0,
                    )
                await asyncio.sleep(0.05)

    async def _record(self, name: str, key: str) -> AppRecord:
        stored = await self._apps.get(_key(key) if "." not in key else key)
        if stored is None:
            raise UnknownApp(f"no app {name!r} is deployed: `cornstalk deploy FILE.py`, or see GET /apps")
        return decode(AppRecord, stored.data)

    def _load(self, record: AppRecord) -> App:
        app = self._loaded.get((record.name, record.version))
        if app is None:
            app = load_app(record.source)
            self._keep(app)
        else:
            self._loaded.move_to_end((record.name, record.version))
        return app

    def _keep(self, app: App) -> None:
        self._loaded[app.name, app.version] = app
        if len(self._loaded) > LOADED:
            self._loaded.popitem(last=False)


def _key(name: str) -> str:
    try:
        return token(name)
    except ValueError:
        raise UnknownApp(f"no app {name[:40]!r} can exist: names are letters, digits, '-' and '_'") from None
