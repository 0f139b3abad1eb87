"""Apps: deployed as source, stored in the registry, loaded where a request needs them."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from typing import Final

from pydantic.errors import PydanticUserError

from broker.connection import Broker
from broker.registry import Registry
from broker.subjects import APPS, COMPONENTS, token
from cornstalk.app import App, load_app, unload_app
from cornstalk.errors import AppError, Quarantined, Refused, TooLarge, UnknownApp
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
        """The version that new requests get. Raises UnknownApp, Quarantined."""
        return self._load(_allowed(await self._record(name)))

    async def to_drive(self, name: str, version: str) -> App:
        """The version on which a request began, for who would run its passes. Raises UnknownApp, Quarantined."""
        return self._load(_allowed(await self._record(name, version)))

    async def version(self, name: str, version: str) -> App:
        """The version on which a request began, for who only looks at its types. Raises UnknownApp."""
        if (app := self._loaded.get((name, version))) is not None:
            return app
        return self._load(await self._record(name, version))

    async def deployed(self) -> list[tuple[AppRecord, App | AppError]]:
        """Every deployed app by name, or why it cannot be loaded here."""
        return [(record, self._loaded_or_why(record)) for record in await self._records()]

    async def deploy(self, source: str) -> AppRecord:
        """Loads, stores, and waits for the operator to make the queues. Raises AppError, Refused (no operator)."""
        if len(source.encode()) > SOURCE_LIMIT:
            raise TooLarge(f"expected an app file of at most {SOURCE_LIMIT} bytes, got {len(source.encode())}")
        app = await asyncio.to_thread(_checked, source)
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

    async def remove(self, name: str) -> list[str]:
        """New requests are refused from here; running ones end. Returns the components that nobody else uses, which
        the operator drains. Raises UnknownApp.
        """
        record = await self._record(name)
        await self._apps.delete(name)
        others = {component for other in await self._records() for component in other.components}
        return sorted(record.components.keys() - others)

    async def _wait_for_queues(self, record: AppRecord) -> None:
        end = time.monotonic() + QUEUE_WAIT
        for component in record.components:
            while not await self._has_queue(component, record.name):
                if time.monotonic() > end:
                    raise Refused(
                        f"{record.name} is stored, but nobody made a queue for its {component}: "
                        "is `python -m dispatcher.operator` running?",
                        retry_after=5.0,
                    )
                await asyncio.sleep(0.05)

    async def _has_queue(self, component: str, app: str) -> bool:
        stored = await self._components.get(component)
        if stored is None:
            return False
        record = decode(ComponentRecord, stored.data)
        return record.state == "active" and app in record.apps

    async def _records(self) -> list[AppRecord]:
        entries = await self._apps.entries()
        return [decode(AppRecord, entries[key].data) for key in sorted(entries) if "." not in key]

    async def _record(self, name: str, version: str = "") -> AppRecord:
        key = f"{_key(name)}.{version}" if version else _key(name)
        stored = await self._apps.get(key)
        if stored is None:
            raise UnknownApp(f"no app {name!r} is deployed: `cornstalk deploy FILE.py`, or see GET /apps", "app")
        return decode(AppRecord, stored.data)

    def _loaded_or_why(self, record: AppRecord) -> App | AppError:
        try:
            return self._load(_allowed(record))
        except AppError as error:
            return error

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
            unload_app(self._loaded.popitem(last=False)[1])


def _allowed(record: AppRecord) -> AppRecord:
    if record.quarantined:
        raise Quarantined(
            f"app {record.name!r} is out of service: a pass of it did not come back, at {record.quarantined}, and held "
            "up its gateway; deploy a version that neither computes nor blocks there"
        )
    return record


def _key(name: str) -> str:
    try:
        return token(name)
    except ValueError:
        raise UnknownApp(f"expected a name of letters, digits, '-' and '_', got {name[:40]!r}", "app") from None


def _checked(source: str) -> App:
    """The app of a source, whose models can be described to its clients. Raises AppError."""
    app = load_app(source)
    for model in (app.request_model, app.response_model):
        try:
            model.model_json_schema()
        except PydanticUserError as error:
            raise AppError(f"app {app.name!r}: {model.__name__} has no JSON schema: {error.message}") from error
    return app
