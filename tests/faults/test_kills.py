"""Random faults of any process while requests run: each answer right, nothing left behind.

kill -9, SIGTERM and SIGSTOP; connections that break, PubAcks that are lost, a full sidecar. CORNSTALK_SOAK=long
(`make soak`) is the same for 1,000 requests, beside the kills at every crash point (test_crash_points.py), each of
which must be visited. CORNSTALK_SEED repeats a run's choice of victims; the short form has one of its own.
"""

from __future__ import annotations

import os
import random
import secrets
from typing import Final

from tests.faults.soak import LONG, Soak, soaked, wired
from tests.faults.stored import files, left_subjects, nothing_left, sidecar_stats
from tests.waiting import eventually

PURGED: Final = 90.0
"""Seconds until nothing is stored of a request: a purge that died with its dispatcher is found after 60."""


async def test_kills_of_any_process_spoil_no_request() -> None:
    seed = int(os.environ.get("CORNSTALK_SEED", secrets.randbelow(10**6) if LONG else 7))
    print(f"seed {seed}")
    async with soaked() as stack, wired(stack) as lines:
        before = files(stack)
        soak = Soak(stack, random.Random(seed), lines=lines)
        await soak.survive()
        await eventually(soak.counted_once, within=20.0)
        await nothing_left(stack, within=40.0)

        left: list[str] = []

        async def purged() -> bool:
            left[:] = await left_subjects(stack)
            return not left

        try:
            await eventually(purged, within=PURGED, every=0.5)
        finally:
            stats, more = await sidecar_stats(stack), files(stack) - before
            leaked = stats.committed_bytes - stats.cached_bytes
            print(f"left: {leaked} bytes, {stats.leases} leases, {len(more)} files; subjects: {left}")
        assert not more
