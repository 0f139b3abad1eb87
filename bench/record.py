"""The cost of a record pass per node: request copy, `invoke`, arguments, types, ids, lines; and of visiting it again.

Beside it a floor of the same run: building and encoding the same nodes from what is known already.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec
from pydantic import BaseModel

from cornstalk import CompositeTask, Stream
from cornstalk.messages import Node, encode
from cornstalk.record import Pass
from cornstalk.tasks.null import NullStream, NullTensor

SIZES: Final = (3, 12, 102, 1000)
"""Nodes of a pass: encoders, one model that takes all their tensors, one voice that takes its stream."""
BAR: Final = 60.0
"""us per node."""
NODES_A_ROUND: Final = 6000


class Request(BaseModel):
    prompt: str
    images: list[str]


class Answer(BaseModel):
    text: Stream[str]
    voice: Stream[str] = ""


class Omni(CompositeTask):
    eye, thinker, voice = NullTensor(name="eye"), NullStream(name="thinker"), NullStream(name="voice")

    def invoke(self, q: Request) -> Answer:
        media = [self.eye(text=image).tensor for image in q.images]
        text = self.thinker(text=q.prompt, tensors=media).text
        return Answer(text=text, voice=self.voice(source=text).text)


async def run(rounds: int = 5) -> dict[str, Any]:
    """Medians of interleaved rounds, in us per node."""
    task = Omni()
    samples: dict[str, list[float]] = {}
    for _ in range(rounds):
        for size in SIZES:
            for name, seconds in _round(task, size).items():
                samples.setdefault(f"{name}_{size}", []).append(seconds * 1e6)
    figures = {name: round(statistics.median(values), 2) for name, values in samples.items()}
    worst = max(figures[f"record_{size}"] for size in SIZES)
    floor = statistics.median(figures[f"floor_{size}"] for size in SIZES)
    return {
        "name": "record",
        "figures": figures,
        "floor": {"us_per_node": floor},
        "ratio": round(worst / floor, 2),
        "bar": {"us_per_node": BAR},
        "ok": worst <= BAR,
    }


def _round(task: Omni, size: int) -> dict[str, float]:
    """Seconds per node of each step, for one size."""
    request = Request(prompt="describe what you see", images=["image"] * (size - 2))
    first = Pass([], {}, request_id="bench")
    first.run(task, request)
    nodes = first.new_nodes
    assert len(nodes) == size, f"{len(nodes)} nodes recorded, not {size}"
    steps: dict[str, Callable[[], object]] = {
        "record": lambda: Pass([], {}, request_id="bench").run(task, request),
        "revisit": lambda: Pass(nodes, {}, request_id="bench").run(task, request),
        "encode": lambda: [encode(n) for n in nodes],
        "floor": lambda: [encode(Node(**msgspec.structs.asdict(n))) for n in nodes],
    }
    return {name: _median(step, max(3, NODES_A_ROUND // size // 4)) / size for name, step in steps.items()}


def _median(step: Callable[[], object], times: int) -> float:
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)
