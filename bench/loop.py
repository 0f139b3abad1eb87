"""What it costs to look at results: a loop of 50 breaks beside the same 50 nodes as a chain of edges.

A loop re-runs `invoke` at each break, k visits at break k, so its own cost is quadratic; `max_calls` (1,000) bounds it.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any, Final

from cornstalk.app import App, load_app
from cornstalk.messages import Finish
from gateway.options import read_options
from gateway.service import Service
from tests.stack import Stack

BREAKS: Final = 50
PROBES: Final = 5
"""Requests of each kind in a round, one at a time."""
APP: Final = Path(__file__).parent / "apps" / "loop50.py"


async def run(rounds: int) -> dict[str, Any]:
    """One JSON object: ms of the loop, of the chain, and their ratio."""
    async with Stack() as stack:
        await stack.deploy(APP)
        app = load_app(APP.read_text())
        service = Service(stack.broker, "")
        await _timed(service, app, look=True)
        loops, chains = [], []
        for _ in range(rounds):
            loops.append(statistics.median([await _timed(service, app, look=True) for _ in range(PROBES)]))
            chains.append(statistics.median([await _timed(service, app, look=False) for _ in range(PROBES)]))
    loop, chain = statistics.median(loops), statistics.median(chains)
    return {
        "name": "loop",
        "figures": {"loop_ms": round(loop, 1), "ms_per_break": round(loop / BREAKS, 2)},
        "floor": {"chain_ms": round(chain, 1)},
        "ratio": {"loop": round(loop / chain, 2)},
        "bar": {"loop": 2.0},
        "ok": loop / chain <= 2.0,
    }


async def _timed(service: Service, app: App, look: bool) -> float:
    """Milliseconds from acceptance to the stored Finish."""
    began = time.perf_counter()
    request = await service.requests.accept(app, {"text": "x", "look": look}, read_options(app.name, {}))
    run = await service.requests.run(request)
    finish = run if isinstance(run, Finish) else await run.finished()
    assert finish.status == "done", finish
    return (time.perf_counter() - began) * 1e3
