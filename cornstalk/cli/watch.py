"""`cornstalk status --watch`: in place on a terminal; elsewhere a line for whatever has changed."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from cornstalk.cli.console import stdout
from cornstalk.cli.errors import TIMED_OUT, UNREACHABLE, CliError

EVERY: Final = 1.0
"""Seconds between two looks."""

Found = dict[str, Any]
"""The object of `cornstalk status --json`."""


Look = Callable[[], Awaitable[Found]]
Next = Callable[[Found], Awaitable[Found]]
"""What is found after a pause, by what was found before."""


async def watch(look: Look, draw: Callable[[Found], Any], as_json: bool, every: float = EVERY) -> None:
    """Until it is cancelled. Raises CliError if the first look fails; a later one is told, and tried again.

    What was found last stays shown while no gateway answers, with why under `away`.
    """
    following = partial(_next, look, every)
    found = await look()
    if as_json:
        await _objects(following, found)
    elif stdout().is_terminal:
        await _in_place(following, draw, found)
    else:
        await _lines(following, found)


async def _objects(following: Next, found: Found) -> None:
    told: Found = {}
    while True:
        if found != told:
            print(json.dumps(found), flush=True)
        told, found = found, await following(found)


async def _in_place(following: Next, draw: Callable[[Found], Any], found: Found) -> None:
    from rich.live import Live

    with Live(draw(found), console=stdout(), auto_refresh=False) as live:
        while True:
            found = await following(found)
            live.update(draw(found), refresh=True)


async def _lines(following: Next, found: Found) -> None:
    told: dict[str, str] = {}
    while True:
        now = described(found)
        for name in told.keys() - now.keys():
            print(f"{_clock()} {name}: gone", flush=True)
        for name, text in now.items():
            if told.get(name) != text:
                print(f"{_clock()} {name}: {text}", flush=True)
        told, found = now, await following(found)


async def _next(look: Look, every: float, found: Found) -> Found:
    await asyncio.sleep(every)
    try:
        return await look()
    except CliError as error:
        if error.exit_code not in (UNREACHABLE, TIMED_OUT):
            raise
        return {**found, "away": f"{error.what}: {error.why}"}


def described(found: Mapping[str, Any]) -> dict[str, str]:
    """One text for each app, component and process, by name."""
    told = {"gateway": found.get("away") or ", ".join(found["gateways"])}
    told |= {f"app {app['name']}": f"version {app['version']}" for app in found["apps"]}
    for c in found["components"]:
        ready = sum(1 for worker in c["workers"] if worker["ready"])
        told[c["id"]] = (
            f"{c['state']}, {ready} of {c['replicas']} workers, "
            f"{sum(c['pending'].values())} pending, {sum(c['in_flight'].values())} in flight"
        )
    told |= {p["name"]: f"pid {p['pid'] or 'down'}, starts {p['starts']}" for p in found["processes"]}
    return told


def _clock() -> str:
    return time.strftime("%H:%M:%S")
