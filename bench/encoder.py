"""Pictures a second of one worker of a tower, eight asked for at once and one at a time, no picture twice.

The tower is a tiny Qwen2.5-VL in a worker process behind gateway, NATS and dispatcher; rounds of the two kinds take
turns. Floor: one at a time. Beside them, in this process, what a step costs and what an engine does without the
pipeline around it: so the report says where the gain comes from. Bar (issue 5): >= 1.5.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench import looking
from components.encoder.vision import VisionEncoder
from cornstalk.tasks import ImageEncoder
from tests.components.fake_call import FakeCall
from tests.components.media_files import picture
from tests.components.tiny_vl import noise
from tests.stack import Stack

AT_ONCE: Final = 8
BAR: Final = 1.5
PICTURES: Final = 64
"""Of each kind in a round."""
SIDE: Final = 112
"""Pixels; 64 patches and 16 rows each."""

_numbers = itertools.count()


class Pace(NamedTuple):
    """Pictures a second."""

    one: float
    eight: float


async def run(rounds: int) -> dict[str, Any]:
    """One JSON object."""
    with tempfile.TemporaryDirectory(prefix="cornstalk-bench-") as folder:
        model = await looking.eyes(Path(folder))
        async with Stack(replicas=1, env={"HF_HUB_OFFLINE": "1"}) as stack:
            await looking.deploy(stack, Path(folder), model, "look")
            served = [await _pace(lambda digest: _ask(stack, digest), stack) for _ in range(rounds + 1)][1:]
        engine = VisionEncoder(ImageEncoder(model=model, dtype="float32"))
        await engine.start()
        bare = [await _pace(lambda file: _see(engine, file)) for _ in range(rounds + 1)][1:]
        largest = engine.stats()["largest_batch"]
        steps = [await asyncio.to_thread(_steps, engine) for _ in range(rounds + 1)][1:]
        await engine.stop()
    return _report(served, bare, steps, largest)


async def _pace(ask: Callable[[Any], Any], stack: Stack | None = None) -> Pace:
    return Pace(*[await _timed(ask, stack, at_once) for at_once in (1, AT_ONCE)])


async def _timed(ask: Callable[[Any], Any], stack: Stack | None, at_once: int) -> float:
    files: list[Any]
    if stack is None:
        files = [_file() for _ in range(PICTURES)]
    else:
        files = [await looking.upload(stack, next(_numbers), SIDE) for _ in range(PICTURES)]
    gate = asyncio.Semaphore(at_once)

    async def one(file: Any) -> None:
        async with gate:
            await ask(file)

    began = time.perf_counter()
    await asyncio.gather(*map(one, files))
    return PICTURES / (time.perf_counter() - began)


def _file() -> bytes:
    return picture(noise(next(_numbers), SIDE, SIDE), "PNG")


async def _ask(stack: Stack, digest: str) -> None:
    (await stack.clients[0].post("/apps/look", json={"image": {"upload": digest}})).raise_for_status()


async def _see(engine: VisionEncoder, file: bytes) -> None:
    await engine.run(FakeCall(**ImageEncoder.defaults | {"image": file}))


def _steps(engine: VisionEncoder) -> Pace:
    """The tower alone, of pictures that are prepared: nothing but a step."""
    pictures = [engine._prepared(ImageEncoder.defaults | {"image": _file()}) for _ in range(AT_ONCE)]

    def paced(parts: list[Any]) -> float:
        began = time.perf_counter()
        for part in parts * PICTURES:
            engine._encode(part)
        return PICTURES * AT_ONCE / (time.perf_counter() - began)

    return Pace(paced([[one] for one in pictures]), paced([pictures]))


def _report(served: list[Pace], bare: list[Pace], steps: list[Pace], largest: float) -> dict[str, Any]:
    ratios = [pace.eight / pace.one for pace in served]
    ratio = statistics.median(ratios)
    return {
        "name": "encoder",
        "figures": {
            "pictures_per_s": _median(served, "eight"),
            "engine_per_s": _median(bare, "eight"),
            "steps_per_s": _median(steps, "eight"),
            "largest_batch": int(largest),
        },
        "floor": {
            "pictures_per_s": _median(served, "one"),
            "engine_per_s": _median(bare, "one"),
            "steps_per_s": _median(steps, "one"),
        },
        "ratio": {
            "pictures_per_s": round(ratio, 2),
            "of_each_round": [round(one, 2) for one in ratios],
            "engine_per_s": round(statistics.median(pace.eight / pace.one for pace in bare), 2),
            "steps_per_s": round(statistics.median(pace.eight / pace.one for pace in steps), 2),
        },
        "bar": {"pictures_per_s": BAR},
        "ok": ratio >= BAR,
    }


def _median(paces: list[Pace], kind: str) -> float:
    return round(statistics.median(getattr(pace, kind) for pace in paces), 1)
