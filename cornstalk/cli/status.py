"""`cornstalk status`: apps, components with what waits and runs, workers, processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cornstalk.cli.gateway import Gateway
from cornstalk.cli.state import read_state, store_path


async def status(gateway: Gateway, store: Path | None, as_json: bool) -> None:
    """Prints it. Raises CliError (cannot reach)."""
    async with gateway:
        apps = (await gateway.call("GET", "/apps"))["apps"]
        components = (await gateway.call("GET", "/components"))["components"]
    state = read_state(store_path(store))
    mine = state if state and state.alive and set(state.urls) & set(gateway.urls) else None
    processes = [{"name": p.name, "pid": p.pid, "starts": p.starts} for p in mine.processes] if mine else []
    found = {"gateways": sorted(gateway.urls), "apps": apps, "components": components, "processes": processes}
    if as_json:
        print(json.dumps(found))
    else:
        _print_tables(found)


def _print_tables(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    def table(*columns: str) -> Table:
        return Table(*columns, box=None, pad_edge=False, header_style="bold")

    console = Console(highlight=False, soft_wrap=True)
    console.print(*found["gateways"])
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
    for shown in (apps, components, processes):
        if shown.rows:
            console.print()
            console.print(shown)
    if not found["apps"]:
        console.print("\nno apps: cornstalk deploy APP.py")
    elif found["components"]:
        console.print("\npending and in flight: interactive + batch")
