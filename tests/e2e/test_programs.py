"""Control flow on results through the real stack: the answers of ordinary Python."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from components.null import digest, stream_of
from cornstalk.tasks.null import Null, NullStream
from tests.e2e.apps import APPS
from tests.stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def programs() -> AsyncIterator[Stack]:
    async with Stack() as running:
        await running.deploy(APPS / "programs.py")
        yield running


def step(text: str, name: str = "step") -> str:
    return digest(name, {**Null.defaults, "text": text})


async def ask(stack: Stack, program: str, text: str, times: int = 3) -> Any:
    answer = await stack.clients[0].post("/apps/programs", json={"text": text, "program": program, "times": times})
    return answer.json()


async def test_a_loop_on_results(programs: Stack) -> None:
    text, path = "again", []
    for _ in range(6):
        text = step(f"{text}!")
        path.append(text[:4])
    assert (await ask(programs, "loop", "again", 6))["response"]["path"] == path


async def test_a_branch_sends_only_the_way_taken(programs: Stack) -> None:
    texts = [f"b{i}" for i in range(8)]
    answers = await asyncio.gather(*(ask(programs, "branch", t) for t in texts))
    ways = set()
    for text, answer in zip(texts, answers, strict=True):
        mark = step(text)
        response = answer["response"]
        ways.add(response["path"][0])
        if mark[0] in "01234567":
            seed = digest("ptalker", {**NullStream.defaults, "text": mark})
            assert response == {"path": ["low"], "text": stream_of(seed, 3)}
        else:
            assert response == {"path": ["high", step(mark)], "text": ""}
    assert ways == {"low", "high"}


async def test_a_failure_is_caught_at_its_call(programs: Stack) -> None:
    answer = await ask(programs, "caught", "f")
    assert answer["response"]["path"] == ["asked_to_fail", step("f")]


async def test_nested_composites_that_break_run_side_by_side(programs: Stack) -> None:
    answer = await ask(programs, "nested", "n", 4)

    def twice(text: str) -> str:
        first = step(text, "inner")
        return step(first.upper() if first[0] in "01234567" else first, "inner")

    assert answer["response"]["path"] == [twice(f"n{i}") for i in range(4)]


async def test_chance_in_an_argument_is_named_with_both_lines(programs: Stack) -> None:
    error = (await ask(programs, "chance", "c"))["error"]
    assert error["code"] == "nondeterministic_invoke"
    assert error["message"].count("programs.py:") + error["message"].count("app.py:") >= 2


async def test_looking_that_cannot_be_seen_costs_the_guess_and_a_warning(programs: Stack) -> None:
    answer = await ask(programs, "hidden", "h")
    assert answer["response"]["path"] == [step("str")]
    found = (await programs.clients[0].get(f"/requests/{answer['request']}")).json()
    assert found["cuts"] == 1
    source = (APPS / "programs.py").read_text().splitlines()
    at = next(i for i, text in enumerate(source, 1) if "type(mark).__name__" in text)
    warning = f"app programs looks at a result in a way that cannot be seen: step#1 at app.py:{at} was cut"
    assert programs.logs(1 << 20).count(warning) == 1


async def test_an_error_of_user_code_points_at_its_line(programs: Stack) -> None:
    error = (await ask(programs, "bug", "x"))["error"]
    assert error["code"] == "app_failed"
    assert "ZeroDivisionError" in error["message"]
    lines = (APPS / "programs.py").read_text().splitlines()
    line = next(i for i, text in enumerate(lines, 1) if "len(mark) - 32" in text)
    assert f".py:{line})" in error["message"]
