"""What the passes of apps cost, through the OpenTelemetry API: whoever sets a meter provider gets it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import metrics

from cornstalk.record import Pass

_meter = metrics.get_meter("cornstalk.gateway")
_seconds = _meter.create_histogram(
    "cornstalk.pass.seconds", "s", "Time that a pass of an app takes; all requests of its gateway wait meanwhile."
)
_visits = _meter.create_counter("cornstalk.pass.visits", "{call}", "Calls that passes made, recorded or found again.")
_guesses_cut = _meter.create_counter(
    "cornstalk.guesses_cut", "{call}", "Calls that were recorded on a guess, and given up for what a result was."
)


@contextmanager
def counted(app: str, run: Pass) -> Iterator[None]:
    """Round one pass."""
    began = time.perf_counter()
    yield
    _seconds.record(time.perf_counter() - began, {"app": app})
    _visits.add(len(run.visited), {"app": app})


def count_cuts(app: str, run: Pass) -> None:
    """What a pass that is stored gave up."""
    if run.cuts:
        _guesses_cut.add(len(run.cuts), {"app": app})
