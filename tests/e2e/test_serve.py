"""`async def serve` through the real stack: several composites, concurrently too, and the death of its gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from components.null import digest, stream_of
from cornstalk.tasks.null import Null, NullStream
from tests.e2e.apps import APPS
from tests.e2e.test_path import frames
from tests.stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    async with Stack(gateways=2) as running:
        await running.deploy(APPS / "served.py")
        yield running


def talk(text: str, pieces: int) -> tuple[str, str]:
    """What Talk answers."""
    mark = digest("shead", {**Null.defaults, "text": text})
    if mark[0] == "0":
        mark = digest("shead", {**Null.defaults, "text": mark})
    return mark, stream_of(digest("stalker", {**NullStream.defaults, "text": text}), pieces)


def answer_to(text: str, pieces: int = 4, error: str = "") -> dict[str, Any]:
    first, second = talk(text, 2), talk(text + "2", 2)
    last = talk(first[0] + second[0], pieces)
    return {"marks": [first[0], second[0], last[0]], "read": first[1] + second[1], "error": error, "text": last[1]}


async def test_composites_side_by_side_and_on_results(stack: Stack) -> None:
    texts = [f"s{i}" for i in range(8)]
    answers = await asyncio.gather(*(stack.clients[0].post("/apps/served", json={"text": t}) for t in texts))
    assert [a.json().get("response") for a in answers] == [answer_to(t) for t in texts]


async def test_a_failed_composite_is_caught_at_its_await(stack: Stack) -> None:
    answer = await stack.clients[0].post("/apps/served", json={"text": "f", "fail": True})
    assert answer.json()["response"] == answer_to("f", error="asked_to_fail")


@pytest.mark.parametrize("how", ["read", "whole"])
async def test_a_stream_that_fails_half_way_ends_the_request_with_its_error(stack: Stack, how: str) -> None:
    answer = await stack.clients[0].post("/apps/served", json={"text": "b", "breaks": how, "service_ms": 20})
    assert answer.status_code == 502
    assert answer.json()["error"]["code"] == "asked_to_fail"


async def test_a_stream_is_passed_on_as_it_comes(stack: Stack) -> None:
    response = await stack.clients[0].post(
        "/apps/served",
        json={"text": "live", "pieces": 6, "service_ms": 40},
        headers={"Accept": "text/event-stream"},
    )
    events = frames(response.text)
    parts = [e["data"]["data"] for e in events if e["event"] == "chunk"]
    assert len(parts) > 1
    assert "".join(parts) == answer_to("live", 6)["text"]
    assert events[-1]["data"]["response"] == {k: v for k, v in answer_to("live", 6).items() if k != "text"}


async def cut_off(stack: Stack, app: str, body: dict[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The chunks that a client has when its gateway is killed, and all events that another one tells it then."""
    seen: list[dict[str, Any]] = []
    request, buffer = "", ""
    async with stack.clients[0].stream(
        "POST",
        f"/apps/{app}",
        json=body,
        headers={"Accept": "text/event-stream", "Cornstalk-Resume-Grace": "20"},
    ) as response:
        request = response.headers["cornstalk-request"]
        async for text in response.aiter_text():
            buffer += text
            seen = frames(buffer[: buffer.rfind("\n\n") + 2])
            if seen:
                stack.children["gateway0"].kill()
                break
    rest = await stack.clients[1].get(f"/requests/{request}/events", headers={"Last-Event-ID": seen[-1]["id"]})
    stack.children["gateway0"].start()
    await stack.wait_ready(0)
    return [e for e in seen if e["event"] == "chunk"], frames(rest.text)


async def test_the_death_of_its_gateway(stack: Stack) -> None:
    """kill -9 in mid-stream: the client goes on elsewhere, where serve runs again and its calls answer from the log."""
    seen, rest = await cut_off(stack, "served", {"text": "dies", "pieces": 8, "service_ms": 50})
    whole = answer_to("dies", 8)
    assert "".join(e["data"]["data"] for e in (*seen, *rest) if e["event"] == "chunk") == whole["text"]
    assert rest[-1]["data"]["response"] == {k: v for k, v in whole.items() if k != "text"}
    request = rest[-1]["data"]["request"]
    status = (await stack.clients[1].get(f"/requests/{request}")).json()
    assert len(status["nodes"]) == len({n["id"] for n in status["nodes"]})
    assert {n["outcome"] for n in status["nodes"]} == {"done"}


async def test_what_clients_were_told_is_never_contradicted(stack: Stack, tmp_path: Path) -> None:
    await stack.deploy(APPS / "fickle.py")
    seen, rest = await cut_off(stack, "fickle", {"runs": str(tmp_path / "runs")})
    assert (tmp_path / "runs").read_text() == "ran\n" * 2
    assert {e["data"]["node"] for e in seen} >= {e["data"]["node"] for e in rest if e["event"] == "chunk"}
    assert rest[-1]["event"] == "error"
    assert "serve answered with other streams" in rest[-1]["data"]["error"]["message"]
