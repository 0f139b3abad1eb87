"""A burst on a component that stands at zero: how soon more workers take of it, and what becomes of them afterwards.

request stored -> the operator looks at the queue -> the tree starts a process -> it claims. Floor: a worker process
that is started by hand, until its first heartbeat. Answers are known beforehand; what is not right counts as lost.
"""

from __future__ import annotations

import asyncio
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from broker.facts import Facts
from broker.registry import Registry
from broker.subjects import WORKERS, parse_run
from cornstalk.messages import End, decode
from cornstalk.records import WorkerBeat
from tests.cli.scaled import Scaled
from tests.cli.tool import ROOT, environment
from tests.cli.trees import state_of
from tests.waiting import eventually

ITEMS: Final = 60
"""Of one burst: 0.2 s each, two at once in a worker."""
MOST: Final = 3
"""Workers at most."""
QUIET: Final = 2
"""Seconds of window and cooldown."""
LOOK: Final = 0.05
"""Seconds between two looks at the processes."""
BAR_RATIO: Final = 2.5
"""A look of the operator (0.5 s), one of the tree (0.25 s), and several workers that start at once on two cores."""


class Round:
    """What one burst showed. Times in seconds from its first request."""

    def __init__(self) -> None:
        self.began = time.time()
        self.workers: list[tuple[float, int]] = []  # when their number changed, and what to
        self.first = 0.0  # the first item from zero is claimed
        self.more = 0.0  # another worker than the first has claimed one
        self.back = 0.0  # from the last answer to zero workers
        self.lost = 0
        self.repeated = 0

    def see(self, count: int) -> None:
        if not self.workers or self.workers[-1][1] != count:
            self.workers.append((round(time.time() - self.began, 2), count))

    @property
    def overshoot(self) -> int:
        return max(0, max(count for _, count in self.workers) - MOST)


async def run(rounds: int = 5) -> dict[str, Any]:
    """One JSON object."""
    with tempfile.TemporaryDirectory(prefix="cornstalk-bench-") as folder:
        store = Path(folder) / "store"
        async with Scaled.up(store, min=0, max=MOST, cooldown=QUIET, window=QUIET) as tree:
            floors, seen = [], []
            for number in range(rounds):
                await tree.there_are(0)
                floors.append(await _started_by_hand(tree))
                seen.append(await _burst(tree, number))
    floor = statistics.median(floors)
    first, more, back = (statistics.median(getattr(one, name) for one in seen) for name in ("first", "more", "back"))
    lost, repeated, overshoot = (sum(getattr(one, name) for one in seen) for name in ("lost", "repeated", "overshoot"))
    return {
        "name": "autoscale",
        "figures": {
            "items": rounds * ITEMS,
            "lost": lost,
            "repeated": repeated,
            "overshoot": overshoot,
            "first_claim_s": round(first, 2),
            "more_workers_claim_s": round(more, 2),
            "back_to_zero_s": round(back, 2),
            "workers": seen[-1].workers,
        },
        "floor": {"worker_start_s": round(floor, 2)},
        "ratio": {"first_claim": round(first / floor, 2)},
        "bar": {"lost": 0, "repeated": 0, "overshoot": 0, "first_claim_ratio": BAR_RATIO},
        "ok": lost + repeated + overshoot == 0 and first <= BAR_RATIO * floor,
    }


async def _started_by_hand(tree: Scaled) -> float:
    """Seconds until a worker process beats, and with that takes items."""
    state, beats = state_of(tree.store), Registry(tree.broker, WORKERS)
    where = {
        "CORNSTALK_NATS_URL": state.nats_url,
        "CORNSTALK_NATS_TOKEN_FILE": state.nats_token_file,
        "CORNSTALK_SIDECAR": state.sidecar,
        "CORNSTALK_HOST": "by-hand",
        "CORNSTALK_LOG": "ERROR",
    }
    began = time.perf_counter()
    command = [sys.executable, "-m", "components", "--component", tree.component]
    worker = await asyncio.create_subprocess_exec(*command, env=environment(**where), cwd=ROOT)
    try:

        async def beats_now() -> bool:
            found = [decode(WorkerBeat, entry.data) for entry in (await beats.entries()).values()]
            return any(beat.pid == worker.pid for beat in found)

        await eventually(beats_now, within=30)
        return time.perf_counter() - began
    finally:
        worker.send_signal(signal.SIGTERM)
        await asyncio.wait_for(worker.wait(), 30)


async def _burst(tree: Scaled, number: int) -> Round:
    tree.requests.clear()
    one = Round()
    watching = asyncio.create_task(_watch(tree, one))
    asked = [tree.ask(f"{number} {i}", lane="batch" if i % 3 == 0 else "interactive") for i in range(ITEMS)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    ended = time.time()
    one.lost = sum(isinstance(answer, BaseException) for answer in answers)
    claims: dict[str, float] = {}
    for request in tree.requests:
        one.repeated += await tree.attempts(request) - 1
        worker, at = await _claim(tree, request)
        claims[worker] = min(at, claims.get(worker, at))
    in_order = sorted(claims.values())
    one.first, one.more = in_order[0] - one.began, in_order[1] - one.began
    await tree.there_are(0)
    one.see(0)
    watching.cancel()
    one.back = one.began + one.workers[-1][0] - ended
    return one


async def _claim(tree: Scaled, request: str) -> tuple[str, float]:
    """Which worker answered, and when it had claimed the item."""
    log = await Facts(tree.broker).read(request)
    (end,) = [decode(End, s.data) for s in log.messages if parse_run(s.subject).kind == "node-end"]
    return end.worker, end.times.claimed


async def _watch(tree: Scaled, one: Round) -> None:
    while True:
        one.see(len(tree.workers()))
        await asyncio.sleep(LOOK)
