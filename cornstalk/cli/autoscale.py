"""`cornstalk autoscale`: the settings of a component, and why it has as many workers as it has."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from cornstalk.cli.console import UNBOUNDED, note, stdout
from cornstalk.cli.deadletters import age
from cornstalk.cli.errors import USAGE, CliError
from cornstalk.cli.gateway import Gateway, told
from cornstalk.client.calls import Call
from cornstalk.errors import BadInput, CornstalkError

_ASIDE: Final = "nothing changes its number of workers: the tree runs without --autoscale"
_WORKED_OUT: Final = {"max": "one for each CPU", "target": "the slots of its engine"}


async def change(gateway: Gateway, component: str, settings: Mapping[str, int], as_json: bool) -> None:
    """Changes the settings given and prints all. Raises CliError; for what cannot be meant, a usage error."""
    if not settings:
        raise CliError("set what?", next=f"cornstalk autoscale set {component} --min 0 --max 4", exit_code=USAGE)
    headers = {**gateway.admin(), "Content-Type": "application/json"}
    call = Call("PATCH", _path(component), headers, json.dumps(settings).encode())
    async with gateway:
        try:
            done = await gateway.client.call(call)
        except BadInput as error:
            raise CliError(str(error), next=f"cornstalk autoscale explain {component}", exit_code=USAGE) from error
        except CornstalkError as error:
            raise told(error) from error
    if as_json:
        print(json.dumps(done))
    else:
        print(_settings(done["policy"]))
        if not done["autoscaled"]:
            note(_ASIDE)


async def explain(gateway: Gateway, component: str, lines: int, as_json: bool) -> None:
    """Prints the settings, what is there now, and the newest `lines` decisions. Raises CliError."""
    async with gateway:
        found = await gateway.call("GET", _path(component))
    found["decisions"] = found["decisions"][:lines]
    if as_json:
        print(json.dumps(found))
        return
    ready = sum(1 for worker in found["workers"] if worker["ready"])
    print(f"{found['id']}: workers wanted {found['replicas']}, ready {ready}")
    print(f"{_lanes(found['pending'])} waiting, {_lanes(found['in_flight'])} running (interactive + batch)")
    print(_settings(found["policy"]))
    if not found["autoscaled"]:
        print(_ASIDE)
    if found["decisions"]:
        print()
        _print_decisions(found["decisions"])


def _print_decisions(decisions: list[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("AGE", "WORKERS", "WAITING", "RUNNING", "RULE", "WHY"):
        table.add_column(name, no_wrap=name != "WHY", overflow="fold")
    for one in decisions:
        held = one["before"] == one["replicas"]
        table.add_row(
            age(time.time() - one["at"]),
            f"{one['replicas']}" if held else f"{one['before']} -> {one['replicas']}",
            _lanes(one["pending"]),
            _lanes(one["in_flight"]),
            one["rule"],
            Text(one["why"]),
        )
    stdout(UNBOUNDED).print(table)


def _settings(policy: Mapping[str, int]) -> str:
    said = []
    for name, value in policy.items():
        unit = " s" if name in ("cooldown", "window") else ""
        said.append(f"{name} {_WORKED_OUT[name]}" if name in _WORKED_OUT and not value else f"{name} {value}{unit}")
    return ", ".join(said)


def _lanes(counts: Mapping[str, int]) -> str:
    return " + ".join(str(counts.get(lane, 0)) for lane in ("interactive", "batch"))


def _path(component: str) -> str:
    return f"/components/{quote(component, safe='')}/autoscale"
