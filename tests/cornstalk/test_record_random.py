"""Random programs give what ordinary Python gives, whatever finishes first and whenever a driver crashes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cornstalk import CompositeTask, TaskError
from cornstalk.messages import Error
from cornstalk.testing import run_plain, run_recorded
from tests.cornstalk.model.apps import ENGINES, LLM, Echo, Risky, echo, risky
from tests.cornstalk.model.programs import programs

INNER = """
def invoke(self, x) -> str:
    a = self.echo(x=x).s
    b = self.risky(x=a).s if len(a) % 4 != 3 else a
    return self.echo(x=b[:9]).s if 'a' in b else b
"""
MODEST = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
REQUESTS = st.sampled_from(["", "a", "abc", "a b", "bad"])


def compiled(source: str) -> Any:
    scope = {"json": json, "re": re, "TaskError": TaskError}
    exec(compile(source, "random_app.py", "exec"), scope)
    return scope["invoke"]


class PlainUnit:
    """A unit task in ordinary Python."""

    def __init__(self, engine: Callable[..., Any]) -> None:
        self.engine = engine

    def __call__(self, **inputs: Any) -> Any:
        try:
            return SimpleNamespace(**self.engine(**inputs))
        except ValueError as error:
            raise TaskError(Error(code="failed", message=f"ValueError: {error}")) from error


def plain(source: str, request: str) -> Any:
    llm = PlainUnit(lambda prompt: {"text": prompt + "|", "tokens": len(prompt)})
    units = {"echo": PlainUnit(echo), "brain": llm, "risky": PlainUnit(risky)}
    inner = compiled(INNER)
    task = SimpleNamespace(**units, step=lambda x: inner(SimpleNamespace(**units), x))
    return compiled(source)(task, request)


def composite_of(source: str) -> CompositeTask:
    def units() -> dict[str, Any]:
        return {"echo": Echo(), "brain": LLM(), "risky": Risky()}

    step = type("StepTask", (CompositeTask,), {"invoke": compiled(INNER), **units()})
    made: CompositeTask = type("App", (CompositeTask,), {"invoke": compiled(source), "step": step(), **units()})()
    return made


def recorded(source: str, request: str, seed: int, crash_at: int | None, strict: bool) -> Any:
    run = run_recorded(
        composite_of(source), request, ENGINES, order="shuffled", seed=seed, crash_at=crash_at, strict=strict
    )
    return run.response


def outcome(call: Callable[..., Any], *args: Any) -> tuple[str, Any]:
    try:
        return "value", call(*args)
    except TaskError as error:
        return "failed call", error.error.message
    except Exception as error:
        return "error", type(error).__name__


def in_every_way(source: str, request: str, seed: int, crash_at: int | None, strict: bool) -> None:
    """Ordinary Python over plain objects, cornstalk.testing's, and record and replay."""
    expected = outcome(plain, source, request)
    assert outcome(run_plain, composite_of(source), request, ENGINES) == expected, source
    assert outcome(recorded, source, request, seed, crash_at, strict) == expected, source


CRASHES = st.none() | st.integers(1, 30)


@MODEST
@given(programs(leaky=False), REQUESTS, st.integers(0, 10**6), CRASHES)
def test_programs_that_look_at_values_honestly_give_what_python_gives(
    source: str, request: str, seed: int, crash_at: int | None
) -> None:
    in_every_way(source, request, seed, crash_at, strict=True)


@MODEST
@given(programs(leaky=True), REQUESTS, st.integers(0, 10**6), CRASHES)
def test_programs_that_hide_what_they_look_at_give_the_same_too(
    source: str, request: str, seed: int, crash_at: int | None
) -> None:
    in_every_way(source, request, seed, crash_at, strict=False)
