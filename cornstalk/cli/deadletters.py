"""`cornstalk dlq`: work that was given up, as the gateway tells it. Payloads only when they are asked for."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from cornstalk.cli.console import UNBOUNDED, stdout
from cornstalk.cli.gateway import Gateway

PAGE: Final = 500

_UNITS: Final = ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s"))


async def list_dead_letters(gateway: Gateway, count: int, as_json: bool) -> None:
    """The newest `count`, newest first. Raises CliError."""
    async with gateway:
        letters = await _newest(gateway, count)
    if as_json:
        print(json.dumps({"dead_letters": letters}))
    elif letters:
        _print_table(letters)
    else:
        print("no dead letters")


async def _newest(gateway: Gateway, count: int) -> list[dict[str, Any]]:
    letters: list[dict[str, Any]] = []
    before = ""
    while len(letters) < count:
        path = f"/dead-letters?limit={min(PAGE, count - len(letters))}{before}"
        page = await gateway.call("GET", path, headers=gateway.admin())
        letters += page["dead_letters"]
        if "next" not in page:
            break
        before = f"&before={page['next']}"
    return letters


def _print_table(letters: list[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("ID", "AGE", "COMPONENT", "REASON", "REQUEST", "NODE", "ATTEMPTS", "ERROR"):
        table.add_column(
            name, no_wrap=name != "ERROR", overflow="fold", justify="right" if name == "ATTEMPTS" else "left"
        )
    for letter in letters:
        table.add_row(
            str(letter["id"]),
            age(time.time() - letter["at"]),
            letter["component"],
            letter["reason"],
            letter["request"],
            _node(letter),
            str(letter["attempts"]),
            Text(_error(letter)),
        )
    stdout(UNBOUNDED).print(table)


async def show_dead_letter(gateway: Gateway, id: int, payload: bool, as_json: bool) -> None:
    """One of them with its work item. Raises CliError."""
    async with gateway:
        path = f"/dead-letters/{id}{'?payload=true' if payload else ''}"
        letter = await gateway.call("GET", path, headers=gateway.admin())
    if as_json:
        print(json.dumps(letter))
        return
    item: dict[str, Any] = letter["item"] or {}
    lines = {
        "dead letter": f"{letter['id']}, {age(time.time() - letter['at'])} old, {letter['nbytes']} bytes",
        "component": letter["component"],
        "reason": letter["reason"],
        "request": letter["request"],
        "node": _node(letter),
        "attempts": letter["attempts"],
        "error": _error(letter),
        "lane": item.get("lane", ""),
        "tenant": item.get("tenant", ""),
        "trace": item.get("trace", ""),
    }
    for name, value in item.get("inputs", {}).items():
        shown = f": {json.dumps(value['value'], ensure_ascii=False)}" if payload else ""
        lines[f"input {name}"] = f"{value['type']}, {value['nbytes']} bytes{shown}"
    width = max(map(len, lines))
    for name, text in lines.items():
        if text:
            print(f"{name:<{width}}  {text}")
    if not payload and item:
        print(f"\ncornstalk dlq show {id} --payload  (prints the inputs)")


async def retry_dead_letters(gateway: Gateway, ids: Sequence[int], as_json: bool) -> None:
    """Prints the new request of each. Raises CliError at the first that cannot be asked again; those before it are."""
    async with gateway:
        for id in ids:
            asked = await gateway.call("POST", f"/dead-letters/{id}/retry", headers=gateway.admin())
            print(json.dumps(asked) if as_json else f"dead letter {id} is request {asked['request']} now")
            if not as_json:
                print(f"cornstalk trace {asked['request']}")


async def purge_dead_letters(gateway: Gateway, ids: Sequence[int], filters: Mapping[str, str], as_json: bool) -> None:
    """Removes those of `ids`, or, without ids, those that the filters name. Raises CliError."""
    async with gateway:
        paths = [f"/dead-letters/{id}" for id in ids] if ids else [f"/dead-letters?{urlencode(filters)}"]
        removed = 0
        for path in paths:
            removed += (await gateway.call("DELETE", path, headers=gateway.admin()))["removed"]
    print(json.dumps({"removed": removed}) if as_json else f"{removed} removed")


def _node(letter: dict[str, Any]) -> str:
    return f"{letter['node']} run {letter['gen'] + 1}" if letter["gen"] else str(letter["node"])


def _error(letter: dict[str, Any]) -> str:
    error = letter.get("error")
    if error is None:
        return f"does not decode: {letter['subject']}"
    return f"{error['message']} [{error['code']}]"


def age(seconds: float) -> str:
    """ "3m": in the largest unit that it fills."""
    size, unit = next(((size, unit) for size, unit in _UNITS if seconds >= size), _UNITS[-1])
    return f"{max(0, int(seconds / size))}{unit}"
