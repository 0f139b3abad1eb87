"""The whole path on real processes: right answers, streams in stored order, resume on another gateway."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.e2e.apps import chain, one
from tests.stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="module")


def frames(text: str) -> list[dict[str, Any]]:
    """Server-sent events as dicts of event, id and data."""
    found = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if lines:
            found.append({**lines, "data": json.loads(lines["data"])})
    return found


async def test_values_tensors_joins_and_streams(stack: Stack) -> None:
    texts = [f"question {i}" for i in range(20)]
    answers = await asyncio.gather(
        *(stack.clients[i % 2].post("/apps/chain", json={"text": t}) for i, t in enumerate(texts))
    )
    for text, answer in zip(texts, answers, strict=True):
        assert answer.status_code == 200, answer.text
        assert answer.json()["response"] == chain(text)


async def test_chunks_add_up_to_the_response(stack: Stack) -> None:
    response = await stack.clients[0].post(
        "/apps/chain", json={"text": "s", "pieces": 9, "service_ms": 20}, headers={"Accept": "text/event-stream"}
    )
    events = frames(response.text)
    whole = chain("s", pieces=9)
    for field in ("text", "echo"):
        parts = [e["data"]["data"] for e in events if e["event"] == "chunk" and e["data"]["field"] == field]
        assert "".join(parts) == whole[field]
        assert len(parts) > 1
    assert events[-1]["event"] == "end"
    assert events[-1]["data"]["response"] == {"joined": whole["joined"]}
    ids = [int(e["id"]) for e in events if "id" in e]
    assert ids == sorted(set(ids))


async def test_the_consumer_of_a_stream_speaks_before_its_producer_has_ended(stack: Stack) -> None:
    """By stored order: the echo's first chunk has a lower sequence than the talker's last."""
    response = await stack.clients[0].post(
        "/apps/chain", json={"text": "order", "pieces": 40, "service_ms": 40}, headers={"Accept": "text/event-stream"}
    )
    chunks = [(int(e["id"]), e["data"]["field"]) for e in frames(response.text) if e["event"] == "chunk"]
    assert min(i for i, f in chunks if f == "echo") < max(i for i, f in chunks if f == "text")


async def test_resume_by_sequence_on_another_gateway(stack: Stack) -> None:
    seen = []
    async with stack.clients[0].stream(
        "POST",
        "/apps/chain",
        json={"text": "cut", "pieces": 8, "service_ms": 40},
        headers={"Accept": "text/event-stream", "Cornstalk-Resume-Grace": "20"},
    ) as response:
        request = response.headers["cornstalk-request"]
        buffer = ""
        async for text in response.aiter_text():
            buffer += text
            seen = frames(buffer[: buffer.rfind("\n\n") + 2])
            if seen:
                break
    after = seen[-1]["id"]
    rest = await stack.clients[1].get(f"/requests/{request}/events", headers={"Last-Event-ID": after})
    events = seen + frames(rest.text)
    whole = chain("cut", pieces=8)
    for field in ("text", "echo"):
        parts = [e["data"]["data"] for e in events if e["event"] == "chunk" and e["data"]["field"] == field]
        assert "".join(parts) == whole[field]
    assert events[-1]["event"] == "end"


async def test_the_same_idempotency_key_is_the_same_request(stack: Stack) -> None:
    headers = {"Idempotency-Key": "k1"}
    first, second = await asyncio.gather(
        *(stack.clients[i].post("/apps/one", json={"text": "once"}, headers=headers) for i in (0, 1))
    )
    again = await stack.clients[0].post("/apps/one", json={"text": "once"}, headers=headers)
    assert {r.json()["request"] for r in (first, second, again)} == {first.json()["request"]}
    assert {json.dumps(r.json()["response"]) for r in (first, second, again)} == {json.dumps(one("once"))}
    other = await stack.clients[0].post("/apps/one", json={"text": "twice"}, headers=headers)
    assert (other.status_code, other.json()["error"]["field"]) == (422, "Idempotency-Key")


async def test_a_failed_task_is_a_typed_error(stack: Stack) -> None:
    answer = await stack.clients[0].post("/apps/one", json={"text": "x", "fail": "raise"})
    error = answer.json()["error"]
    assert answer.status_code == 502
    assert (error["code"], error["message"]) == ("asked_to_fail", "asked to fail")
    assert error["component"].startswith("null-value-")


async def test_a_deadline_ends_the_request(stack: Stack) -> None:
    answer = await stack.clients[0].post(
        "/apps/one", json={"text": "slow", "service_ms": 20_000}, headers={"Cornstalk-Deadline": "0.5"}
    )
    assert (answer.status_code, answer.json()["status"]) == (504, "expired")


async def test_delete_cancels(stack: Stack) -> None:
    async with stack.clients[0].stream(
        "POST", "/apps/one", json={"text": "c", "service_ms": 20_000}, headers={"Accept": "text/event-stream"}
    ) as response:
        request = response.headers["cornstalk-request"]
        assert (await stack.clients[1].delete(f"/requests/{request}")).status_code == 202
        text = "".join([t async for t in response.aiter_text()])
    assert frames(text)[-1]["data"]["status"] == "cancelled"


async def test_a_client_that_leaves_cancels_after_its_grace(stack: Stack) -> None:
    async with stack.clients[0].stream(
        "POST", "/apps/one", json={"text": "left", "service_ms": 20_000}, headers={"Accept": "text/event-stream"}
    ) as response:
        request = response.headers["cornstalk-request"]
    from tests.waiting import eventually

    async def status() -> bool:
        return bool((await stack.clients[1].get(f"/requests/{request}")).json()["status"] == "cancelled")

    await eventually(status, within=5)


async def test_unknown_things_are_404(stack: Stack) -> None:
    client: httpx.AsyncClient = stack.clients[0]
    assert (await client.post("/apps/nobody", json={})).json()["error"]["code"] == "unknown_app"
    assert (await client.post("/apps/no.body", json={})).status_code == 404
    assert (await client.get(f"/requests/{'0' * 32}")).json()["error"]["code"] == "unknown_request"
    assert (await client.get(f"/requests/{'0' * 32}/events")).status_code == 404
    assert (await client.delete(f"/requests/{'0' * 32}")).status_code == 404
    assert (await client.get("/requests/nonsense")).status_code == 422
