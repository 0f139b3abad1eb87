"""A loop that others rely on does not end unseen: it goes on, or whoever waits for it is told."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Iterator
from typing import Final

import pytest

from cornstalk.loops import forever
from tests.stack import ROOT
from tests.waiting import eventually

SERVICES: Final = ("broker", "sidecar", "dispatcher", "gateway", "components")
WAITED_FOR: Final = {
    "sidecar/uplink.py run": "its process ends with it",
    "dispatcher/deadlines.py run": "its process ends with it",
    "dispatcher/leader.py run": "its process ends with it",
    "dispatcher/purge.py run": "its process ends with it",
    "dispatcher/recovery.py run": "its process ends with it",
    "dispatcher/lock.py run": "its process ends with it",
    "dispatcher/operator.py _rounds": "its process ends with it",
    "gateway/batch_job.py _tell": "the job fails with it, and runs again",
    "gateway/websocket.py _read": "the connection is closed with it, with a code",
    "components/__main__.py _beat": "it lets no error out",
    "components/llm/vllm_states.py _read": "its process ends with it",
}
"""Loops without an end that are not `forever`, and who sees it when one ends all the same."""


async def test_it_goes_on_after_an_error_and_says_where_but_not_what(caplog: pytest.LogCaptureFixture) -> None:
    steps, prompt = 0, "what a user said"

    async def step() -> None:
        nonlocal steps
        steps += 1
        if steps == 2:
            raise ValueError(prompt)
        await asyncio.sleep(0)

    task = asyncio.create_task(forever(step, "looking"))
    await eventually(lambda: steps > 3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (record,) = caplog.records
    said = record.getMessage()
    assert said.startswith("looking: a step failed")
    assert "ValueError" in said
    assert "test_loops.py" in said
    assert prompt not in said


def endless() -> Iterator[str]:
    """Functions of the services with a `while True` that nothing in it leaves."""
    for service in SERVICES:
        for path in sorted((ROOT / service).rglob("*.py")):
            for function in ast.walk(ast.parse(path.read_text())):
                if isinstance(function, ast.AsyncFunctionDef) and any(map(_has_no_end, ast.walk(function))):
                    yield f"{path.relative_to(ROOT).as_posix()} {function.name}"


def _has_no_end(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.While)
        and isinstance(node.test, ast.Constant)
        and not any(isinstance(inner, (ast.Return, ast.Break)) for inner in ast.walk(node))
    )


def test_every_loop_without_an_end_is_such_a_loop_or_is_waited_for() -> None:
    assert set(endless()) == WAITED_FOR.keys()
