"""What passes cost, and how many guesses were cut, is counted by app."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from opentelemetry import metrics
from opentelemetry.metrics import Counter, Histogram, NoOpCounter, NoOpHistogram, NoOpMeter, NoOpMeterProvider

from cornstalk.app import load_app
from cornstalk.messages import Finish
from gateway.options import read_options
from gateway.service import Service
from tests.faults.apps import FAULT_APPS
from tests.stack import Stack

told: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
"""What each instrument was told, by instrument and app."""


class Told(NoOpCounter):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._of = name

    def add(self, amount: float, attributes: Any = None, context: Any = None) -> None:
        told[self._of, attributes["app"]].append(amount)


class Recorded(NoOpHistogram):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._of = name

    def record(self, amount: float, attributes: Any = None, context: Any = None) -> None:
        told[self._of, attributes["app"]].append(amount)


class Meter(NoOpMeter):
    def create_counter(self, name: str, unit: str = "", description: str = "") -> Counter:
        return Told(name)

    def create_histogram(self, name: str, unit: str = "", description: str = "", **_: Any) -> Histogram:
        return Recorded(name)


class Provider(NoOpMeterProvider):
    def get_meter(self, name: str, *_: Any, **__: Any) -> metrics.Meter:
        return Meter(name)


async def test_passes_and_guesses_that_were_cut_are_counted() -> None:
    metrics.set_meter_provider(Provider())
    path = FAULT_APPS / "guess.py"
    async with Stack() as stack:
        await stack.deploy(path)
        service, app = Service(stack.broker, ""), load_app(path.read_text())
        options = read_options(app.name, {})
        await service.requests.accept(app, {"text": "x"}, options)
        run = await service.requests.run(options.request)
        finish = run if isinstance(run, Finish) else await run.finished()
        assert finish.status == "done", finish
        await service.requests.close()
    assert told["cornstalk.guesses_cut", "guess"] == [2]  # the talker that was a guess, and the value after it
    passes = told["cornstalk.pass.seconds", "guess"]
    assert len(passes) >= 2
    assert all(0 < seconds < 1 for seconds in passes)
    visits = told["cornstalk.pass.visits", "guess"]
    assert len(visits) == len(passes)
    assert visits[0] == 3
    assert visits[-1] == 2
