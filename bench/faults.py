"""kill -9 of each kind of process while requests run: what is right, and for how long nobody worked on a request.

Recovery is taken from what is stored: the longest time after a kill in which nothing of a request that met it was
stored. The request's next piece is in it, so it is an upper bound of the time before anything runs again. The next
kill comes only when all requests that met the one before are answered. Bars (issue 4): right = requests, nothing is
doubled or leaked, p99 of the death of a process <= 1 s. Floor: the same time of requests without kills.
"""

from __future__ import annotations

import random
import statistics
from typing import Any, Final

from broker.reads import pages
from broker.subjects import RUNS, parse_run
from tests.faults.soak import KILL, VICTIMS, Soak, share, soaked
from tests.faults.stored import nothing_left, sidecar_stats
from tests.stack import Stack
from tests.waiting import eventually

SEED: Final = 7
REQUESTS: Final = 500
QUIET: Final = 30
"""Requests without a kill."""
BAR_S: Final = 1.0
KILLED: Final = tuple(victim for victim in VICTIMS if victim[1] is KILL)


async def run(_rounds: int = 1) -> dict[str, Any]:
    """One round, however many are asked for: the kills of one round need a minute."""
    async with soaked(CORNSTALK_GRACE="600", CORNSTALK_ACK_WAIT="15") as stack:
        calm = Soak(stack, random.Random(SEED), (), QUIET)
        await calm.calmly()
        soak = Soak(stack, random.Random(SEED), KILLED, REQUESTS, first=QUIET, paced=True)
        await soak.run()
        await eventually(soak.counted_once, within=20.0)
        await nothing_left(stack, within=40.0)
        stats = await sidecar_stats(stack)
        leaked = stats.committed_bytes - stats.cached_bytes
        unended = await _unended(stack)
    recovery = [seconds for fault in soak.faults for seconds in fault.recovery]
    late = share(recovery, 0.99)
    right = len(soak.took)
    return {
        "name": "faults",
        "figures": {
            "kills": len(soak.faults),
            "requests": soak.begun,
            "right": right,
            "wrong_lost_or_doubled": len(soak.wrong),
            "leaked_bytes": leaked,
            "requests_without_end": unended,
            "met_a_kill": len(recovery),
            "recovery_p50_s": share(recovery, 0.5),
            "recovery_p99_s": late,
            "recovery_max_s": share(recovery, 1.0),
            "request_p50_s": round(statistics.median(soak.took), 2),
            "victims": soak.report(),
        },
        "floor": {
            "silence_p50_s": share(calm.silences, 0.5),
            "silence_max_s": share(calm.silences, 1.0),
            "request_p50_s": round(statistics.median(calm.took), 2),
        },
        "ratio": {"request_p50": round(statistics.median(soak.took) / statistics.median(calm.took), 2)},
        "bar": {"recovery_p99_s": BAR_S, "wrong_lost_or_doubled": 0, "leaked_bytes": 0},
        "ok": late <= BAR_S and right == soak.begun and not (soak.wrong or leaked or unended),
    }


async def _unended(stack: Stack) -> int:
    kinds: dict[str, set[str]] = {}
    async for stored in pages(stack.broker, RUNS, "run.>"):
        key = parse_run(stored.subject)
        kinds.setdefault(key.request, set()).add(key.kind)
    return sum("end" not in found for found in kinds.values())
