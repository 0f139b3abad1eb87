"""`cornstalk deploy`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from cornstalk.cli.errors import USAGE, CliError
from cornstalk.cli.gateway import Gateway


async def deploy_file(gateway: Gateway, path: Path) -> dict[str, Any]:
    """Deploys an app file: {name, version, components}. Raises CliError, which names the line when the app is bad."""
    source = _read(path)
    headers = {**gateway.admin(), "Content-Type": "text/x-python; charset=utf-8"}
    return await gateway.call("POST", "/apps", content=source, headers=headers)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CliError(f"cannot read {path}", why=error.strerror or "", exit_code=USAGE) from error


async def deploy(url: str | None, store: Path | None, path: Path | None, remove: str | None) -> None:
    """Deploys a file or removes an app, and prints what that means for its components."""
    if (path is None) == (remove is None):
        raise CliError(
            "deploy what?", next="cornstalk deploy APP.py, or cornstalk deploy --remove NAME", exit_code=USAGE
        )
    async with Gateway.find(url, store) as gateway:
        if path is not None:
            done = await deploy_file(gateway, path)
            print(f"{done['name']} {done['version']}")
            for component in done["components"]:
                print(f"  {component}")
            for warning in done["warnings"]:
                print(f"{path}: {warning}", file=sys.stderr)
        else:
            gone = await gateway.call("DELETE", f"/apps/{remove}", headers=gateway.admin())
            print(f"removed {gone['name']}")
            for component in gone["drains"]:
                print(f"  drains {component}")
