"""`python -m bench NAME [--json]`: one benchmark on real processes, beside a floor measured in the same run.

The last line of stdout is one JSON object: name, figures, floor, ratio, bar, ok, load. Above a load average of 1.5 per
core at the start the run is refused: the figures would say more of the neighbours than of us.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import sys
from typing import Any, Final

import uvloop

NAMES: Final = (
    "record",
    "hop",
    "loop",
    "sse",
    "sidecar",
    "recovery",
    "faults",
    "cancels",
    "overload",
    "autoscale",
    "batch_lane",
    "llm_overhead",
    "first_step",
    "encoder",
    "encoder_cache",
    "idle",
)
LIMIT: Final = 1.5
"""Load average (1 minute) above which a run is refused."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--json", action="store_true", help="only the JSON line on stdout")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds; the median counts")
    parser.add_argument("--force", action="store_true", help="measure whatever the load is")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    if load > LIMIT and not args.force:
        print(f"load average {load:.2f} is over {LIMIT}: wait, or pass --force", file=sys.stderr)
        return 2
    module = importlib.import_module(f"bench.{args.name}")
    result: dict[str, Any] = uvloop.run(_run(module, args.rounds))
    result["load"] = round(load, 2)
    if not args.json:
        for part in ("figures", "floor", "ratio", "bar"):
            print(f"{part}: {json.dumps(result[part], indent=2)}")
    print(json.dumps(result))
    return 0 if result["ok"] else 1


async def _run(module: Any, rounds: int) -> dict[str, Any]:
    outcome = module.run(rounds)
    result: dict[str, Any] = await outcome if asyncio.iscoroutine(outcome) else outcome
    return result


if __name__ == "__main__":
    sys.exit(main())
