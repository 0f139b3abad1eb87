"""Random programs of an `invoke` and of a `serve` give one answer: in ordinary Python, recorded in process, and through
the real stack.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from components.null import PIECE, digest, stream_of, tensor_of
from cornstalk import App, CompositeTask, TaskError, UnitTask
from cornstalk.app import load_app
from cornstalk.errors import EngineError
from cornstalk.serving import serving
from cornstalk.tasks.null import NullStream, NullTensor
from cornstalk.testing import run_plain, run_recorded
from cornstalk.testing.turns import Order
from tests.e2e.apps import APPS
from tests.e2e.served_statements import served_programs
from tests.e2e.statements import Statement, programs
from tests.stack import Stack

BATCH, BATCHES = 10, 6
ROUNDS = 3


def loaded(name: str) -> App:
    return load_app((APPS / f"{name}.py").read_text(), f"{name}.py")


app, served = loaded("interpreter"), loaded("served_programs")
taken: Counter[str] = app.task.invoke.__globals__["TAKEN"]
taken_by_serves: Counter[str] = served.serve.__globals__["TAKEN"]  # type: ignore[union-attr]


def engine(task: UnitTask, inputs: dict[str, Any]) -> dict[str, Any]:
    """The null engines as one function."""
    mark = digest(task.name, inputs)  # type: ignore[attr-defined]
    if isinstance(task, NullTensor):
        return {"tensor": tensor_of(mark, inputs["nbytes"]), "digest": mark}
    if isinstance(task, NullStream):
        whole = stream_of(mark, inputs["pieces"], inputs["source"])
        pieces = [whole[i : i + PIECE] for i in range(0, len(whole), PIECE)]
        return {"text": pieces, "pieces": len(pieces)}
    match inputs["fail"]:
        case "raise":
            raise EngineError("asked to fail", code="asked_to_fail")
        case "bug":
            raise ZeroDivisionError
        case "wrong_type":
            return {"digest": 7}
    return {"digest": mark}


def ended(call: Any) -> Any:
    """The response as a client gets it; of an error whose it is."""
    try:
        return call().model_dump(mode="json")
    except TaskError:
        return "a call failed"
    except (ValueError, ExceptionGroup):
        return "app_failed"


def plain(it: App, program: list[Statement], text: str) -> Any:
    return ended(lambda: run_plain(it, {"text": text, "program": program}, engine))


@pytest.fixture(scope="module", autouse=True)
def report() -> Iterator[None]:
    yield
    print(f"\ntaken by the programs: {dict(sorted(taken.items()))}")
    print(f"taken by serves: {dict(sorted(taken_by_serves.items()))}")


WELL = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
TEXTS = st.sampled_from(["", "7", "abc", "a-b"])
KINDS = (
    "branch",
    "other branch",
    "loop",
    "loop on a result",
    "nesting",
    "stream edge",
    "fan-in",
    "caught failure",
    "left by a handler",
)
SERVE_KINDS = ("call", "gather", "group", "later", "relay", "read", "whole", "if", "for", "try")
ORDERS = st.sampled_from(["first", "last", "shuffled"])
CRASHES = st.none() | st.integers(1, 40)


def until_all_are_taken(programs_agree: Callable[[], None], counts: Counter[str], kinds: tuple[str, ...]) -> None:
    """Each round draws other programs: a kind that one round takes 18 times only, the next ones take too."""
    before = counts.copy()
    rare = list(kinds)
    for _ in range(ROUNDS):
        programs_agree()
        rare = [kind for kind in kinds if (counts - before)[kind] <= 20]
        if not rare:
            return
    pytest.fail(f"hardly a program took this in {ROUNDS} rounds: {rare}")


def test_recorded_in_process_gives_what_python_gives() -> None:
    until_all_are_taken(in_process, taken, KINDS)


@WELL
@given(programs(), TEXTS, ORDERS, st.integers(0, 10**6), CRASHES)
def in_process(program: list[Statement], text: str, order: Order, number: int, crash_at: int | None) -> None:
    request = {"text": text, "program": program}
    answer = ended(lambda: run_recorded(app, request, engine, order=order, seed=number, crash_at=crash_at).response)
    assert answer == plain(app, program, text), program


def test_a_serve_in_process_gives_what_asyncio_gives() -> None:
    until_all_are_taken(serves_in_process, taken_by_serves, (*SERVE_KINDS, "caught"))


@WELL
@given(served_programs(), TEXTS, ORDERS, st.integers(0, 10**6), CRASHES)
def serves_in_process(program: list[Statement], text: str, order: Order, number: int, crash_at: int | None) -> None:
    request = {"text": text, "program": program}
    expected = ended(lambda: asyncio.run(ordinary(request)))
    assert plain(served, program, text) == expected, program
    answer = ended(lambda: run_recorded(served, request, engine, order=order, seed=number, crash_at=crash_at).response)
    assert answer == expected, program


class Ordinary:
    """Composites that are awaited in ordinary asyncio, with their streams whole."""

    async def call(self, task: CompositeTask, request: Any) -> Any:
        await asyncio.sleep(0)
        return run_plain(task, request, engine)


async def ordinary(request: dict[str, Any]) -> Any:
    token = serving.set(Ordinary())
    try:
        assert served.serve is not None
        return await served.serve(served.request(request))
    finally:
        serving.reset(token)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    async with Stack() as running:
        await running.deploy(APPS / "interpreter.py")
        await running.deploy(APPS / "served_programs.py")
        yield running


def batches(made: Any) -> Any:
    return given(st.lists(st.tuples(made, TEXTS), min_size=BATCH, max_size=BATCH))


@pytest.mark.asyncio(loop_scope="module")
@seed(7)
@settings(WELL, max_examples=BATCHES, phases=[Phase.generate])
@batches(programs())
async def test_the_real_stack_gives_what_python_gives(stack: Stack, batch: list[tuple[list[Statement], str]]) -> None:
    await all_agree(stack, app, batch)


@pytest.mark.asyncio(loop_scope="module")
@seed(7)
@settings(WELL, max_examples=BATCHES, phases=[Phase.generate])
@batches(served_programs())
async def test_a_serve_on_the_real_stack_gives_what_asyncio_gives(
    stack: Stack, batch: list[tuple[list[Statement], str]]
) -> None:
    await all_agree(stack, served, batch)


async def all_agree(stack: Stack, it: App, batch: list[tuple[list[Statement], str]]) -> None:
    answers = await asyncio.gather(*(ask(stack, it, *each) for each in batch))
    expected = await asyncio.gather(*(asyncio.to_thread(plain, it, *each) for each in batch))
    for (program, _), answer, one in zip(batch, answers, expected, strict=True):
        assert answer == one, program


async def ask(stack: Stack, it: App, program: list[Statement], text: str) -> Any:
    answer = await stack.clients[0].post(f"/apps/{it.name}", json={"text": text, "program": program})
    body = answer.json()
    counted = taken if it is app else taken_by_serves
    counted[f"real stack: {body.get('status') or body['error']['code']}"] += 1
    if answer.status_code == 200:
        return body["response"]
    code = body["error"]["code"]
    return "a call failed" if code in ("asked_to_fail", "engine_raised", "bad_output") else code
