"""kill -9 of each kind of process while requests run: what is right, and after how long lost work runs again.

Recovery is taken from what is stored: an item that comes again is marked before its next start (design rule 6). The
time of the first mark less that of the kill that its request met is how long nobody worked on it, at most. The next
kill comes only when all requests that met the one before are answered. Bars (issue 4): right = requests, nothing is
doubled or leaked, p99 of the death of a process <= 1 s. Floor: the median time of the same requests without kills.
"""

from __future__ import annotations

import random
import statistics
import time
from typing import Any, Final

from broker.reads import pages
from broker.subjects import RUNS, parse_run
from tests.faults.soak import KILL, VICTIMS, Fault, Soak, soaked
from tests.faults.stored import nothing_left, sidecar_stats
from tests.stack import Stack
from tests.waiting import eventually

SEED: Final = 7
REQUESTS: Final = 800
QUIET: Final = 30
"""Requests without a kill."""
BAR_S: Final = 1.0
LATE: Final = 0.99
KILLED: Final = tuple(victim for victim in VICTIMS if victim[1] is KILL)


async def run(_rounds: int = 1) -> dict[str, Any]:
    """One round, however many are asked for: the kills of one round need a minute."""
    async with soaked(CORNSTALK_GRACE="600", CORNSTALK_ACK_WAIT="15") as stack:
        calm = Soak(stack, random.Random(SEED), (), QUIET)
        await calm.calmly()
        soak = Soak(stack, random.Random(SEED), KILLED, REQUESTS, first=QUIET, paced=True)
        shift = time.time() - time.monotonic()
        await soak.run()
        await eventually(soak.counted_once, within=20.0)
        await nothing_left(stack, within=40.0)
        recovered = await _recovered(stack, soak.faults, shift)
        stats = await sidecar_stats(stack)
        unended = await _unended(stack)
    late = recovered[min(len(recovered) - 1, int(len(recovered) * LATE))]
    right = len(soak.took)
    floor = statistics.median(calm.took)
    return {
        "name": "faults",
        "figures": {
            "kills": len(soak.faults),
            "requests": soak.begun,
            "right": right,
            "wrong_lost_or_doubled": len(soak.wrong),
            "leaked_bytes": stats.committed_bytes,
            "requests_without_end": unended,
            "items_again": len(recovered),
            "recovery_p50_s": round(statistics.median(recovered), 3),
            "recovery_p99_s": round(late, 3),
            "recovery_max_s": round(recovered[-1], 3),
            "request_p50_s": round(statistics.median(soak.took), 2),
            "victims": soak.report(),
        },
        "floor": {"request_p50_s": round(floor, 2)},
        "ratio": {"request_p50": round(statistics.median(soak.took) / floor, 2)},
        "bar": {"recovery_p99_s": BAR_S, "wrong_lost_or_doubled": 0, "leaked_bytes": 0},
        "ok": late <= BAR_S and right == soak.begun and not (soak.wrong or stats.committed_bytes or unended),
    }


async def _recovered(stack: Stack, faults: list[Fault], shift: float) -> list[float]:
    """Seconds from a kill to the first mark after it of each item of the requests that met it, ascending."""
    marks: dict[str, list[tuple[float, str]]] = {}  # request -> (when, its node and generation)
    async for stored in pages(stack.broker, RUNS, "run.*.node.*.*.try.*"):
        key = parse_run(stored.subject)
        marks.setdefault(key.request, []).append((stored.time, f"{key.node}.{key.gen}"))
    times = []
    for fault in faults:
        killed = fault.at + shift
        for number in fault.in_flight:
            first: dict[str, float] = {}
            for when, item in sorted(marks.get(Soak.request(number), [])):
                if when > killed:
                    first.setdefault(item, when - killed)
            times += first.values()
    return sorted(times)


async def _unended(stack: Stack) -> int:
    kinds: dict[str, set[str]] = {}
    async for stored in pages(stack.broker, RUNS, "run.>"):
        key = parse_run(stored.subject)
        kinds.setdefault(key.request, set()).add(key.kind)
    return sum("end" not in found for found in kinds.values())
