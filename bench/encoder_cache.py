"""One encoder under two apps and two workers: how often it runs when pictures come again.

400 requests, by turns of both apps and both gateways, show pictures of a pool of 50: the tower of a tiny Qwen2.5-VL
must look at each once. Floor: as many requests, no picture of which comes twice. A null task reads every byte of the
embeddings, so a wrong or swapped tensor is another answer than the first look at that picture gave.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench import looking
from broker.reads import pages
from broker.subjects import ALL_USAGE, USAGE
from cornstalk.messages import decode
from cornstalk.usage import RequestUsage
from tests.stack import Stack
from tests.waiting import eventually

REQUESTS: Final = 400
POOL: Final = 50
AT_ONCE: Final = 16
SIDE: Final = 336
"""Pixels."""
SEED: Final = 7
APPS: Final = ("first", "second")


async def run(rounds: int = 5) -> dict[str, Any]:
    """One JSON object. `rounds` is not used: what is counted is exact."""
    with tempfile.TemporaryDirectory(prefix="cornstalk-bench-") as folder:
        model = await looking.eyes(Path(folder))
        async with Stack(gateways=2, env={"HF_HUB_OFFLINE": "1"}) as stack:
            await looking.deploy(stack, Path(folder), model, *APPS)
            single = await _Run(stack, list(range(1000, 1000 + REQUESTS))).go()
            shown = np.random.default_rng(SEED).permutation(np.arange(REQUESTS) % POOL).tolist()
            pool = await _Run(stack, shown).go()
    return _report(pool, single)


class _Run:
    """The requests of one list of pictures, and what came of them."""

    def __init__(self, stack: Stack, shown: list[int]) -> None:
        self._stack, self._shown = stack, shown
        self._gate = asyncio.Semaphore(AT_ONCE)
        self._files: dict[int, str] = {}
        self.times: list[float] = []
        self.answers: dict[int, set[str]] = {}
        self.requests: set[str] = set()
        self.seconds = 0.0
        self.looks = 0

    async def go(self) -> _Run:
        await asyncio.gather(*(self._upload(number) for number in set(self._shown)))
        began = time.monotonic()
        await asyncio.gather(*(self._ask(n, number) for n, number in enumerate(self._shown)))
        self.seconds = time.monotonic() - began
        self.looks = await eventually(self._counted, within=30.0, every=0.2)
        return self

    async def _upload(self, number: int) -> None:
        async with self._gate:
            self._files[number] = await looking.upload(self._stack, number, SIDE)

    async def _ask(self, n: int, number: int) -> None:
        async with self._gate:
            began = time.monotonic()
            app = APPS[n // 2 % 2]
            body = {"image": {"upload": self._files[number]}}
            answer = await self._stack.clients[n % 2].post(f"/apps/{app}", json=body)
            answer.raise_for_status()
            self.times.append(time.monotonic() - began)
            self.answers.setdefault(number, set()).add(answer.json()["response"]["digest"])
            self.requests.add(answer.json()["request"])

    async def _counted(self) -> int:
        """Looks that were not spared; 0 until all is accounted for."""
        records = [decode(RequestUsage, stored.data) async for stored in pages(self._stack.broker, USAGE, ALL_USAGE)]
        eyes = [
            node
            for record in records
            if record.request in self.requests
            for node in record.nodes
            if node.component.startswith("encoder-")
        ]
        return sum(not node.usage.cached for node in eyes) if len(eyes) == len(self._shown) else 0


def _report(pool: _Run, single: _Run) -> dict[str, Any]:
    wrong = sum(len(answers) - 1 for run in (pool, single) for answers in run.answers.values())
    figures = {
        "requests": len(pool.times),
        "encoder_runs": pool.looks,
        "hit_rate": round(1 - pool.looks / REQUESTS, 4),
        "wrong": wrong,
        "requests_per_s": round(REQUESTS / pool.seconds, 1),
        "p50_ms": round(statistics.median(pool.times) * 1000, 1),
    }
    floor = {
        "encoder_runs": single.looks,
        "requests_per_s": round(REQUESTS / single.seconds, 1),
        "p50_ms": round(statistics.median(single.times) * 1000, 1),
    }
    return {
        "name": "encoder_cache",
        "figures": figures,
        "floor": floor,
        "ratio": {name: round(figures[name] / floor[name], 2) for name in floor},
        "bar": {"encoder_runs": POOL, "wrong": 0},
        "ok": (figures["encoder_runs"], wrong) == (POOL, 0),
    }
