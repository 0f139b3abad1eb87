"""From the last byte of an encoder to the first step of vLLM that has its rows: pictures of a tiny Qwen2.5-VL.

Real processes, one request at a time, no picture twice; only the worker of the model runs here, where it can be seen
when vLLM first scheduled each request. It begins when the encoder has committed its tensor, and ends in the process of
vLLM's scheduler. Floor: the same prompts given straight to vLLM. Needs vLLM: run it with .venv-vllm. Bar (issue 5): <=
10 ms.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from broker.facts import Facts
from components.__main__ import ENVIRONMENT
from components.llm.answer import checked
from components.llm.prompt import Prompt
from components.llm.vllm_engine import VllmEngine
from components.llm.vllm_pictures import engine_input
from components.tensors import torch_of
from components.worker import Identity, Worker
from cornstalk.messages import End, decode
from cornstalk.tasks import LLM
from sidecar.client import SidecarClient
from tests.components.media_files import picture
from tests.components.tiny_vl import SIZE, noise, tiny_vl
from tests.stack import Stack

BAR: Final = 10.0
"""Milliseconds."""
ASKS: Final = 20
"""Of each round, after as many that warm up."""
TOKENS: Final = 2
LARGE: Final = (1369, 3584)
"""Rows of a picture of 1024 x 1024 pixels for the 7B, which are 9.8 MB in bfloat16."""
PARTS: Final = ("claimed", "leased", "scheduled")
"""Claimed by the worker, inputs there, scheduled by vLLM: each since the one before."""
QUIETLY: Final = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
ARGUMENTS: Final[dict[str, Any]] = {"max_model_len": 1024, "max_num_seqs": 8, "enforce_eager": True}
STARTS_WITHIN: Final = 300.0
APP: Final = """
from pydantic import BaseModel

from cornstalk import App, CompositeTask, Stream
from cornstalk.tasks import LLM, ImageEncoder, MultimodalLLM, Sight


class Said(BaseModel):
    text: Stream[str]


class See(CompositeTask):
    model = MultimodalLLM(
        LLM(model={model!r}, dtype="float32", engine="vllm", engine_args={arguments!r}),
        ImageEncoder(model={model!r}, dtype="float32"),
    )

    def invoke(self, request: Sight) -> Said:
        return Said(text=self.model(request))


app = App("see", See())
"""


async def run(rounds: int) -> dict[str, Any]:
    for name, value in (ENVIRONMENT | QUIETLY).items():
        os.environ.setdefault(name, value)
    with tempfile.TemporaryDirectory(prefix="cornstalk-bench-") as folder:
        model = await asyncio.to_thread(tiny_vl, Path(folder) / "vl", "qwen2_5_vl")
        file = Path(folder) / "see.py"
        file.write_text(APP.format(model=str(model), arguments=ARGUMENTS))
        async with Stack(replicas=1, env={"HF_HUB_OFFLINE": "1"}) as stack:
            words, eyes = sorted((await stack.deploy(file, workers=False))["components"], reverse=True)
            stack.start_workers(eyes)
            await stack.wait_workers(eyes, 1, within=STARTS_WITHIN)
            async with _working(stack, words, model) as (engine, scheduled):
                bench = _Bench(stack, engine, scheduled)
                for number in range(rounds + 1):
                    await bench.round(number)
                bench.forget(ASKS)
                return bench.report()


@asynccontextmanager
async def _working(stack: Stack, component: str, model: Path) -> AsyncIterator[tuple[VllmEngine, dict[str, float]]]:
    """A worker in this process, and when vLLM scheduled each request, in seconds of the monotonic clock."""
    task = LLM(model=str(model), dtype="float32", engine="vllm", engine_args=ARGUMENTS)
    engine, scheduled = VllmEngine(task), dict[str, float]()
    await engine.start()
    llm = engine._server._llm
    plain = llm.generate

    async def generate(given: Any, sampling: Any, name: str) -> AsyncIterator[Any]:
        async for output in plain(given, sampling, name):
            scheduled.setdefault(name.partition(":")[0], output.metrics.scheduled_ts)
            yield output

    llm.generate = generate
    sidecar = await SidecarClient.connect(stack.socket, name="bench", quota=0)
    worker = Worker(Identity(component, "bench"), task, engine, stack.broker, sidecar)
    await worker.start()
    yield engine, scheduled
    await worker.drain(5.0)
    await engine.stop()
    await sidecar.close()


class _Bench:
    def __init__(self, stack: Stack, engine: VllmEngine, scheduled: dict[str, float]) -> None:
        self._stack, self._engine, self._scheduled = stack, engine, scheduled
        self._parts: dict[str, list[float]] = {name: [] for name in ("whole", *PARTS)}
        self._floor: list[float] = []

    async def round(self, number: int) -> None:
        for i in range(ASKS):
            await self._ask(number * ASKS + i)
            await self._straight(f"floor{number}-{i}", number * ASKS + i)

    async def _ask(self, seed: int) -> None:
        client = self._stack.clients[0]
        file = await asyncio.to_thread(picture, noise(seed, 100, 140), "PNG")
        sent = (await client.post("/uploads", content=file)).json()["digest"]
        body = {"prompt": "describe", "images": [{"upload": sent}], "max_tokens": TOKENS}
        answer = await client.post("/apps/see", json=body)
        answer.raise_for_status()
        request = answer.json()["request"]
        ends = await self._ends(request)
        (seen,) = (end.times for end in ends if "embeddings" in end.outputs)
        (said,) = (end.times for end in ends if "text" in end.outputs)
        scheduled = self._scheduled[request] + time.time() - time.monotonic()
        for name, since, to in (
            ("whole", seen.ended, scheduled),
            ("claimed", seen.ended, said.claimed),
            ("leased", said.claimed, said.started),
            ("scheduled", said.started, scheduled),
        ):
            self._parts[name].append(1e3 * (to - since))

    async def _ends(self, request: str) -> list[End]:
        stored = (await Facts(self._stack.broker).read(request)).messages
        return [decode(End, one.data) for one in stored if ".node." in one.subject and one.subject.endswith(".end")]

    async def _straight(self, name: str, seed: int) -> None:
        from vllm import SamplingParams

        rows = np.random.default_rng(seed).normal(size=(1, 4, 5, SIZE)).astype(np.float32)
        ask = checked({**LLM.defaults, "prompt": "describe", "images": [rows]})
        given = engine_input(self._engine._prompt(ask), [])
        began = time.monotonic()
        async for _ in self._engine._server._llm.generate(given, SamplingParams(max_tokens=TOKENS), name):
            continue
        self._floor.append(1e3 * (self._scheduled[name] - began))

    def forget(self, asks: int) -> None:
        """The first ones, which warmed up."""
        for times in (*self._parts.values(), self._floor):
            del times[:asks]

    def report(self) -> dict[str, Any]:
        whole, floor = statistics.median(self._parts["whole"]), statistics.median(self._floor)
        return {
            "name": "first_step",
            "figures": {
                "whole_p50_ms": round(whole, 2),
                "whole_p90_ms": round(statistics.quantiles(self._parts["whole"], n=10)[-1], 2),
                "whole_max_ms": round(max(self._parts["whole"]), 2),
                **{f"{name}_p50_ms": round(statistics.median(self._parts[name]), 2) for name in PARTS},
                "asks": len(self._parts["whole"]),
                "large_prompt_ms": round(_large(), 2),
            },
            "floor": {"p50_ms": round(floor, 2)},
            "ratio": {"p50": round(whole / floor, 2)},
            "bar": {"whole_p50_ms": BAR},
            "ok": whole <= BAR,
        }


def _large() -> float:
    """Milliseconds to make a prompt of LARGE rows ready for vLLM: copied and hashed."""
    array = np.zeros(LARGE, np.uint16)
    times = []
    for _ in range(5):
        began = time.perf_counter()
        rows = torch_of(array)[None]
        engine_input(Prompt([0] * LARGE[0], rows, [(0, LARGE[0])]), [])
        times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times)
