"""Random programs give one answer: in ordinary Python, recorded in process, and through the real stack."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from components.null import PIECE, digest, stream_of, tensor_of
from cornstalk import TaskError, UnitTask
from cornstalk.app import load_app
from cornstalk.errors import EngineError
from cornstalk.tasks.null import NullStream, NullTensor
from cornstalk.testing import run_plain, run_recorded
from cornstalk.testing.turns import Order
from tests.e2e.apps import APPS
from tests.e2e.statements import Statement, programs
from tests.stack import Stack

INTERPRETER = APPS / "interpreter.py"
BATCH, BATCHES = 10, 6

app = load_app(INTERPRETER.read_text(), INTERPRETER.name)
taken: Counter[str] = app.task.invoke.__globals__["TAKEN"]


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
    except ValueError:
        return "app_failed"


def plain(program: list[Statement], text: str) -> Any:
    return ended(lambda: run_plain(app, {"text": text, "program": program}, engine))


@pytest.fixture(scope="module", autouse=True)
def report() -> Iterator[None]:
    yield
    print(f"\ntaken by the programs: {dict(sorted(taken.items()))}")


WELL = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
TEXTS = st.sampled_from(["", "7", "abc", "a-b"])
KINDS = (
    "branch",
    "other branch",
    "loop",
    "loop on a result",
    "nesting",
    "fan-in",
    "caught failure",
    "left by a handler",
)
ORDERS = st.sampled_from(["first", "last", "shuffled"])


def test_recorded_in_process_gives_what_python_gives() -> None:
    before = taken.copy()
    in_process()
    took = taken - before
    for kind in KINDS:
        assert took[kind] > 20, f"hardly a program took this: {kind}"


@WELL
@given(programs(), TEXTS, ORDERS, st.integers(0, 10**6), st.none() | st.integers(1, 40))
def in_process(program: list[Statement], text: str, order: Order, number: int, crash_at: int | None) -> None:
    request = {"text": text, "program": program}
    answer = ended(lambda: run_recorded(app, request, engine, order=order, seed=number, crash_at=crash_at).response)
    assert answer == plain(program, text), program


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    async with Stack() as running:
        await running.deploy(INTERPRETER)
        yield running


@pytest.mark.asyncio(loop_scope="module")
@seed(7)
@settings(WELL, max_examples=BATCHES, phases=[Phase.generate])
@given(st.lists(st.tuples(programs(), TEXTS), min_size=BATCH, max_size=BATCH))
async def test_the_real_stack_gives_what_python_gives(stack: Stack, batch: list[tuple[list[Statement], str]]) -> None:
    answers = await asyncio.gather(*(ask(stack, *each) for each in batch))
    for (program, text), answer in zip(batch, answers, strict=True):
        assert answer == plain(program, text), program


async def ask(stack: Stack, program: list[Statement], text: str) -> Any:
    answer = await stack.clients[0].post("/apps/interpreter", json={"text": text, "program": program})
    body = answer.json()
    taken[f"real stack: {body.get('status') or body['error']['code']}"] += 1
    if answer.status_code == 200:
        return body["response"]
    code = body["error"]["code"]
    return "a call failed" if code in ("asked_to_fail", "engine_raised", "bad_output") else code
