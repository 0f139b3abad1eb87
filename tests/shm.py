"""Files in shared memory, by the processes that use them: whatever else runs on the machine has some too."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

SHARED = "/dev/shm/"


def held(pid: int) -> list[str]:
    """What a process has open or mapped, by name, sockets and pipes among it."""
    mapped = [line.split(maxsplit=5)[5:] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    opened = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            opened.append(os.readlink(link))
        except FileNotFoundError:  # closed meanwhile
            continue
    return [*(name for (name,) in filter(None, mapped)), *opened]


def shared_files(pids: Iterable[int]) -> set[str]:
    """Files in shared memory that these processes have open or mapped, and that have a name to be found by."""
    names = {name for pid in pids for name in held(pid)}
    return {name for name in names if name.startswith(SHARED) and not name.endswith(" (deleted)")}
