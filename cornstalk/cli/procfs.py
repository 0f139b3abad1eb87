"""What the kernel knows of a process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")


def start_time(pid: int) -> int | None:
    """Clock ticks from boot to its start, which with the pid names it for good; None when it has ended."""
    fields = _stat(pid)
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


def cpu_seconds(pid: int) -> float:
    """Seconds of processor it took so far; 0 when there is none."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS if fields else 0.0


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on: the name before it may hold anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
