"""Random programs give what ordinary Python gives, whatever finishes first and whenever a driver crashes."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cornstalk import CompositeTask, TaskError
from cornstalk.messages import Error
from tests.cornstalk.model.apps import LLM, Echo, Risky, echo, executor, risky
from tests.cornstalk.model.driver import Driver
from tests.cornstalk.model.programs import programs
from tests.cornstalk.model.store import Store

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
            raise TaskError(Error(code="failed", message=str(error))) from error


def plain(source: str, request: str) -> Any:
    llm = PlainUnit(lambda prompt: {"text": prompt + "|", "tokens": len(prompt)})
    units = {"echo": PlainUnit(echo), "brain": llm, "risky": PlainUnit(risky)}
    inner = compiled(INNER)
    task = SimpleNamespace(**units, step=lambda x: inner(SimpleNamespace(**units), x))
    return compiled(source)(task, request)


def recorded(source: str, request: str, seed: int, crash: bool, strict: bool) -> Any:
    def units() -> dict[str, Any]:
        return {"echo": Echo(), "brain": LLM(), "risky": Risky()}

    step = type("StepTask", (CompositeTask,), {"invoke": compiled(INNER), **units()})
    task: CompositeTask = type("RandomApp", (CompositeTask,), {"invoke": compiled(source), "step": step(), **units()})()

    async def main() -> Any:
        store, chance = Store(), random.Random(seed)
        for attempt in itertools.count():
            ex = executor(task, seed + attempt)
            job = asyncio.create_task(Driver(task, request, ex, store, strict).run())
            if crash and attempt < 3:
                for _ in range(chance.randrange(1, 20)):
                    await asyncio.sleep(0)
                if not job.done():
                    job.cancel()
                    ex.crash()
                    await asyncio.gather(job, return_exceptions=True)
                    continue
            return await asyncio.wait_for(job, 20)

    return asyncio.run(main())


def outcome(call: Callable[..., Any], *args: Any) -> tuple[str, Any]:
    try:
        return "value", call(*args)
    except Exception as error:
        return "error", type(error).__name__


@MODEST
@given(programs(leaky=False), REQUESTS, st.integers(0, 10**6), st.booleans())
def test_programs_that_look_at_values_honestly_give_what_python_gives(
    source: str, request: str, seed: int, crash: bool
) -> None:
    assert outcome(recorded, source, request, seed, crash, True) == outcome(plain, source, request), source


@MODEST
@given(programs(leaky=True), REQUESTS, st.integers(0, 10**6), st.booleans())
def test_programs_that_hide_what_they_look_at_give_the_same_too(
    source: str, request: str, seed: int, crash: bool
) -> None:
    assert outcome(recorded, source, request, seed, crash, False) == outcome(plain, source, request), source
