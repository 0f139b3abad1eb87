"""Time and chance that are the same in every pass: functions of request id, composite call and how many came before."""

from __future__ import annotations

import datetime
import random

from cornstalk.pending import Recorder, current


def now() -> datetime.datetime:
    """When the request was accepted (UTC), however late the pass."""
    return datetime.datetime.fromtimestamp(_run("now").accepted_at, datetime.UTC)


def rng() -> random.Random:
    """A generator of its own for each call of `rng()`, seeded from the request."""
    return random.Random(_run("rng").draw("rng"))


def new_id() -> str:
    """32 hex digits, another one for each call, unique to the request."""
    return _run("new_id").draw("id").hex()


def _run(name: str) -> Recorder:
    run = current.get()
    if run is None:
        raise RuntimeError(f"{name}() is called inside invoke")
    return run
