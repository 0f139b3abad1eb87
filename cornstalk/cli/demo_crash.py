"""Requests that go on while a worker of the language model gets kill -9, and how soon its items ran elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cornstalk.cli.ask import Ask
from cornstalk.cli.demo_requests import Asked, ask_all
from cornstalk.cli.errors import TIMED_OUT, CliError
from cornstalk.cli.gateway import Gateway
from cornstalk.cli.procfs import cpu_seconds, start_time

TASK: Final = "cornstalk.tasks.llm:LLM"
WINDOW: Final = 0.05
"""Seconds over which the work of a process is measured."""
BUSY: Final = 0.6
"""Share of a core from which on a worker is generating: one that waits takes next to none."""
BUSY_WITHIN: Final = 60.0


@dataclass(frozen=True)
class Crash:
    """What came of one kill."""

    requests: list[Asked]
    killed_pid: int
    recovery: float | None
    """Seconds from the kill until the first item it held was claimed by another worker; None if it held none."""
    held: int
    """Items it held."""


async def crash_round(gateway: Gateway, asks: Sequence[Ask]) -> Crash:
    """Asks all, kills a worker of the language model while it generates, waits for all. Raises CliError."""
    component, pids = await _workers(gateway)
    asking = asyncio.create_task(ask_all(gateway, asks))
    try:
        pid = await _busy(pids, asking)
        os.kill(pid, signal.SIGKILL)
        killed_at = time.time()
        requests = await asking
    except BaseException:
        asking.cancel()
        with contextlib.suppress(BaseException):
            await asking
        raise
    again = [at for one in requests for node in one.view["nodes"] if (at := _claimed_again(node, component, killed_at))]
    return Crash(requests, pid, min(again) - killed_at if again else None, len(again))


async def _workers(gateway: Gateway) -> tuple[str, list[int]]:
    components = (await gateway.call("GET", "/components"))["components"]
    [llm] = [c for c in components if c["task"] == TASK]
    return llm["id"], [w["pid"] for w in llm["workers"] if w["ready"] and start_time(w["pid"])]


async def _busy(pids: Sequence[int], asking: asyncio.Task[list[Asked]]) -> int:
    """The worker that works hardest, once one generates. Load is seen at once, heartbeats lag."""
    end = time.monotonic() + BUSY_WITHIN
    before = {pid: cpu_seconds(pid) for pid in pids}
    while time.monotonic() < end and not asking.done():
        await asyncio.sleep(WINDOW)
        now = {pid: cpu_seconds(pid) for pid in pids}
        busiest = max(pids, key=lambda pid: now[pid] - before[pid])
        if now[busiest] - before[busiest] >= BUSY * WINDOW:
            return busiest
        before = now
    if asking.done():
        await asking
    raise CliError("no worker of the language model was seen at work", exit_code=TIMED_OUT)


def _claimed_again(node: Mapping[str, Any], component: str, killed_at: float) -> float | None:
    """When another worker claimed an item that the killed one held; None for any other node."""
    claimed = float(node.get("times", {}).get("claimed", 0.0))
    return claimed if node["component"] == component and node["restarts"] and claimed >= killed_at else None
