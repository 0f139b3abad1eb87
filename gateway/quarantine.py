"""A pass that does not come back takes its gateway along: the app version is marked first, so that it takes no other.

Nothing can stop a running pass but the end of its process. Other gateways go on with the requests of this one; those of
the marked version they end.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Final, NoReturn

import msgspec

from broker.connection import Broker
from broker.errors import BrokerError, Conflict
from broker.registry import Registry
from broker.subjects import APPS
from cornstalk.messages import decode, encode
from cornstalk.records import AppRecord

log = logging.getLogger(__name__)

WITHIN: Final = 5.0
"""Seconds that marking may take."""
EXIT: Final = 70
"""Exit status of a gateway that an app held up."""


def quarantine(app: str, version: str, line: str) -> NoReturn:
    """From another thread than the event loop's, which is held up: over a connection of its own. Ends this process."""
    try:
        asyncio.run(asyncio.wait_for(_mark(app, version, line), WITHIN))
        log.critical("version %s of app %s is quarantined; this gateway ends, for it is held up", version, app)
    except (BrokerError, TimeoutError) as error:
        log.critical("this gateway ends, for app %s holds it up; not quarantined: %s", app, type(error).__name__)
    os._exit(EXIT)


async def _mark(app: str, version: str, line: str) -> None:
    broker = await Broker.from_env("gateway-watchdog")
    try:
        for key in (app, f"{app}.{version}"):
            await _mark_record(Registry(broker, APPS), key, version, line.rpartition("/")[2])
    finally:
        await broker.close()


async def _mark_record(apps: Registry, key: str, version: str, line: str) -> None:
    """Unless it holds another version by now, or is marked already."""
    while (entry := await apps.get(key)) is not None:
        record = decode(AppRecord, entry.data)
        if record.version != version or record.quarantined:
            return
        try:
            await apps.update(key, encode(msgspec.structs.replace(record, quarantined=line)), entry.revision)
            return
        except Conflict:
            continue
