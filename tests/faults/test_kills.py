"""Random kill -9, SIGTERM and SIGSTOP of any process while requests run: each answer right, nothing left behind.

CORNSTALK_SOAK=long (`make soak`) is the same for 1,000 requests. CORNSTALK_SEED repeats a run's choice of victims.
"""

from __future__ import annotations

import os
import random
import secrets

from tests.faults.soak import REQUESTS, Soak, soaked
from tests.faults.stored import nothing_left
from tests.waiting import eventually


async def test_kills_of_any_process_spoil_no_request() -> None:
    seed = int(os.environ.get("CORNSTALK_SEED", secrets.randbelow(10**6)))
    print(f"seed {seed}")
    async with soaked() as stack:
        soak = Soak(stack, random.Random(seed))
        await soak.run()
        took = sorted(soak.took)
        print(f"{soak.begun} requests, {len(took)} right; p50 {took[len(took) // 2]:.1f} s, longest {took[-1]:.1f} s")
        for name, row in soak.report().items():
            print(f"{name:22}", "  ".join(f"{key} {value}" for key, value in row.items()))
        assert soak.wrong == []
        assert soak.begun >= REQUESTS
        await eventually(soak.counted_once, within=20.0)
        await nothing_left(stack, within=40.0)
