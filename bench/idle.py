"""What workers with nothing to do take of a processor: of four engines, two of each, 30 s after 5 s of silence.

By the kernel's account of each process (10 ms a tick). Floor: a process that sleeps. What else runs beside them is told
too, without a bar. Bar (issue 5): no worker over 1 %.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cornstalk.cli.procfs import cpu_seconds
from tests.components.tiny_vl import tiny_vl
from tests.omni.tiny_omni import tiny_omni
from tests.stack import Stack

BAR: Final = 1.0
"""Per cent of one processor."""
SETTLE: Final = 5.0
WATCH: Final = 30.0
"""Seconds."""
STARTS_WITHIN: Final = 300.0
APP: Final = """
from pydantic import BaseModel

from cornstalk import App, CompositeTask
from cornstalk.media import AudioUpload, ImageUpload
from cornstalk.tasks import LLM, ImageEncoder, OmniEar
from cornstalk.tasks.null import Null


class Ask(BaseModel):
    image: ImageUpload
    audio: AudioUpload


class Reply(BaseModel):
    tokens: int
    digest: str


class All(CompositeTask):
    eyes = ImageEncoder(model={sees!r}, dtype="float32")
    ear = OmniEar(model={hears!r}, dtype="float32")
    llm = LLM(model={sees!r}, dtype="float32")
    value = Null(name="read")

    def invoke(self, q: Ask) -> Reply:
        seen, heard = self.eyes(image=q.image).embeddings, self.ear(audio=q.audio).rows
        return Reply(tokens=self.llm(prompt="what", images=[seen]).tokens, digest=self.value(tensors=[heard]).digest)


app = App("idle", All())
"""


async def run(rounds: int) -> dict[str, Any]:
    """One JSON object; `rounds` windows, of which the worst counts."""
    with tempfile.TemporaryDirectory(prefix="cornstalk-bench-") as folder:
        sees = await asyncio.to_thread(tiny_vl, Path(folder) / "vl", "qwen2_5_vl")
        hears = await asyncio.to_thread(tiny_omni, Path(folder) / "omni")
        file = Path(folder) / "idle.py"
        file.write_text(APP.format(sees=str(sees), hears=str(hears)))
        sleeper = await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(3600)")
        try:
            async with Stack(env={"HF_HUB_OFFLINE": "1"}) as stack:
                for component in (await stack.deploy(file, workers=False))["components"]:
                    stack.start_workers(component)
                    await stack.wait_workers(component, stack.replicas, within=STARTS_WITHIN)
                watched = {name: child.pid for name, child in stack.children.items()} | {"sleeper": sleeper.pid}
                await asyncio.sleep(SETTLE)
                windows = [await _watched(watched) for _ in range(rounds)]
        finally:
            sleeper.kill()
            await sleeper.wait()
    return _report(windows)


async def _watched(pids: Mapping[str, int]) -> dict[str, float]:
    """Per cent of a processor that each of them took."""
    before, began = {name: cpu_seconds(pid) for name, pid in pids.items()}, time.monotonic()
    await asyncio.sleep(WATCH)
    took = time.monotonic() - began
    return {name: 100 * (cpu_seconds(pid) - before[name]) / took for name, pid in pids.items()}


def _report(windows: list[dict[str, float]]) -> dict[str, Any]:
    worst = {name: max(window[name] for window in windows) for name in windows[0]}
    workers: dict[str, float] = {}
    for name, percent in worst.items():
        kind, at, _ = name.partition("@")
        if at:
            workers[kind.rpartition("-")[0]] = max(percent, workers.get(kind.rpartition("-")[0], 0.0))
    beside = {name: round(percent, 2) for name, percent in worst.items() if "@" not in name and name != "sleeper"}
    return {
        "name": "idle",
        "figures": {"percent": {kind: round(percent, 2) for kind, percent in workers.items()}, "beside": beside},
        "floor": {"sleeper": round(worst["sleeper"], 2)},
        "ratio": {},
        "bar": {"percent": BAR},
        "ok": max(workers.values()) < BAR,
    }
