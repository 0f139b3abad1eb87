"""A whole tree as a user starts it, looked at from outside."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cornstalk.cli.procfs import start_time
from cornstalk.cli.state import State, read_state
from tests.cli.tool import cornstalk

FLAGS = ("--port", "0", "--sidecar-bytes", str(64 << 20))


def state_of(store: Path) -> State:
    state = read_state(store)
    assert state is not None
    return state


def pid_of(store: Path, name: str) -> int:
    """0 while it is down."""
    return next((p.pid for p in state_of(store).processes if p.name == name), 0)


def all_pids(store: Path) -> list[int]:
    state = state_of(store)
    return [state.pid, *(p.pid for p in state.processes if p.pid)]


def status(store: Path) -> dict[str, Any]:
    done = cornstalk("status", "--json", "--store", store)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def ready_workers(store: Path) -> dict[str, int]:
    """Workers per kind of component whose process lives: a killed one's heartbeat stays for a while."""
    return {
        c["task"].rpartition(":")[2]: sum(1 for w in c["workers"] if w["ready"] and start_time(w["pid"]))
        for c in status(store)["components"]
    }


@contextmanager
def up(store: Path, *args: str | Path, grace: float = 60.0) -> Iterator[Path]:
    """`grace`: seconds that finished requests are kept."""
    done = cornstalk("up", "--detach", "--store", store, *FLAGS, *args, CORNSTALK_GRACE=str(grace))
    assert done.returncode == 0, done.stderr
    try:
        yield store
    finally:
        cornstalk("down", "--store", store)
