"""`cornstalk status`: apps, components with what waits and runs, workers, processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from cornstalk.cli.console import UNBOUNDED, stdout
from cornstalk.cli.gateway import Gateway
from cornstalk.cli.state import read_state, store_path
from cornstalk.cli.watch import Found, watch

if TYPE_CHECKING:
    from rich.console import Group


async def status(gateway: Gateway, store: Path | None, as_json: bool, watched: bool) -> None:
    """Prints it, once or until it is cancelled. Raises CliError (cannot reach)."""
    async with gateway:
        if watched:
            await watch(lambda: _look(gateway, store), _tables, as_json)
        elif as_json:
            print(json.dumps(await _look(gateway, store)))
        else:
            stdout(UNBOUNDED).print(_tables(await _look(gateway, store)))


async def _look(gateway: Gateway, store: Path | None) -> Found:
    apps = (await gateway.call("GET", "/apps"))["apps"]
    components = (await gateway.call("GET", "/components"))["components"]
    state = read_state(store_path(store))
    mine = state if state and state.alive and set(state.urls) & set(gateway.urls) else None
    processes = [{"name": p.name, "pid": p.pid, "starts": p.starts} for p in mine.processes] if mine else []
    return {"gateways": sorted(gateway.urls), "apps": apps, "components": components, "processes": processes}


def _tables(found: Found) -> Group:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    def table(*columns: str) -> Table:
        return Table(*columns, box=None, pad_edge=False, header_style="bold")

    apps = table("APP", "VERSION", "COMPONENTS")
    for app in found["apps"]:
        apps.add_row(app["name"], app["version"], " ".join(app["components"]))
    components = table("COMPONENT", "STATE", "PENDING", "IN FLIGHT", "WORKERS", "APPS")
    for c in found["components"]:
        ready = sum(1 for w in c["workers"] if w["ready"])
        load = [
            " + ".join(str(c[k].get(lane, 0)) for lane in ("interactive", "batch")) for k in ("pending", "in_flight")
        ]
        components.add_row(c["id"], c["state"], *load, f"{ready} of {c['replicas']}", " ".join(c["apps"]))
    processes = table("PROCESS", "PID", "STARTS")
    for p in found["processes"]:
        processes.add_row(p["name"], str(p["pid"] or "down"), str(p["starts"]))

    away = found.get("away")
    parts: list[Table | Text] = [Text(away, style="red") if away else Text(" ".join(found["gateways"]))]
    for shown in (apps, components, processes):
        if shown.rows:
            parts += [Text(), shown]
    if not found["apps"]:
        parts.append(Text("\nno apps: cornstalk deploy APP.py"))
    elif found["components"]:
        parts.append(Text("\npending and in flight: interactive + batch"))
    return Group(*parts)
