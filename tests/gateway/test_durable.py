"""Durable requests end right without any client, whatever happens to the gateways that drive them."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from cornstalk.tasks.null import Null
from gateway.options import read_options
from tests.e2e.apps import APPS, chain, digest_of
from tests.e2e.test_serve import answer_to
from tests.stack import Stack
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

ACK_WAIT = 4.0
"""Seconds after which the drive item of a dead gateway comes to another one, in this stack."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    async with Stack(gateways=2, env={"CORNSTALK_ACK_WAIT": str(ACK_WAIT)}) as running:
        await running.deploy(APPS / "chain.py")
        await running.deploy(APPS / "served.py")
        yield running


async def begun(stack: Stack, text: str, service_ms: float = 300, app: str = "chain", **headers: str) -> str:
    """A durable request on the first gateway, whose client goes away as soon as it has been accepted."""
    async with stack.clients[0].stream(
        "POST",
        f"/apps/{app}",
        json={"text": text, "service_ms": service_ms},
        headers={"Accept": "text/event-stream", "Cornstalk-Durable": "true", **headers},
    ) as response:
        assert response.status_code == 200
        return response.headers["cornstalk-request"]


async def ended(stack: Stack, gateway: int, request: str, within: float) -> dict[str, object]:
    async def done() -> dict[str, object] | None:
        body: dict[str, object] = (await stack.clients[gateway].get(f"/requests/{request}")).json()
        return body if body["status"] != "running" else None

    body = await eventually(done, within=within, every=0.05)
    assert body is not None
    return body


def check(body: dict[str, object], text: str) -> None:
    assert (body["status"], body["response"]) == ("done", {"joined": chain(text)["joined"]}), body


async def test_a_client_that_leaves_cancels_nothing(stack: Stack) -> None:
    request = await begun(stack, "alone")
    check(await ended(stack, 1, request, within=15), "alone")


async def test_delete_cancels_it(stack: Stack) -> None:
    request = await begun(stack, "cancel", service_ms=20_000)
    assert (await stack.clients[1].delete(f"/requests/{request}")).status_code == 202
    assert (await ended(stack, 1, request, within=5))["status"] == "cancelled"


async def test_its_deadline_ends_it(stack: Stack) -> None:
    request = await begun(stack, "expires", service_ms=20_000, **{"Cornstalk-Deadline": "0.7"})
    assert (await ended(stack, 1, request, within=5))["status"] == "expired"


async def only_the_first(stack: Stack) -> None:
    stack.children["gateway1"].kill()
    stack.children["gateway1"].wait(10)


async def start(stack: Stack, gateway: int) -> None:
    stack.children[f"gateway{gateway}"].start()
    await stack.wait_ready(gateway)


async def test_another_gateway_goes_on_when_one_is_killed(stack: Stack) -> None:
    await only_the_first(stack)
    request = await begun(stack, "killed")
    stack.children["gateway0"].kill()
    stack.children["gateway0"].wait(10)
    await start(stack, 1)
    check(await ended(stack, 1, request, within=ACK_WAIT + 10), "killed")
    await start(stack, 0)


async def test_a_serve_runs_again_on_another_gateway_and_its_calls_answer_from_the_log(stack: Stack) -> None:
    await only_the_first(stack)
    request = await begun(stack, "served", app="served")

    async def half_way() -> bool:
        nodes = (await stack.clients[0].get(f"/requests/{request}")).json()["nodes"]
        return {"done", ""} <= {node["outcome"] for node in nodes}

    await eventually(half_way, within=15)
    stack.children["gateway0"].kill()
    stack.children["gateway0"].wait(10)
    await start(stack, 1)
    body = await ended(stack, 1, request, within=ACK_WAIT + 15)
    whole = answer_to("served")
    assert (body["status"], body["response"]) == ("done", {k: v for k, v in whole.items() if k != "text"}), body
    nodes = (await stack.clients[1].get(f"/requests/{request}")).json()["nodes"]
    assert len({node["node"] for node in nodes}) == len(nodes) == nodes_of("served")
    assert {(node["gen"], node["outcome"]) for node in nodes} == {(0, "done")}
    await start(stack, 0)


async def test_while_nothing_dies_one_gateway_drives_it_and_a_serve_runs_once(stack: Stack, tmp_path: Path) -> None:
    """Each of two gateways may claim the drive item of a request that one of them accepted, and drives already."""
    await stack.deploy(APPS / "counted.py")
    file = tmp_path / "runs"
    body = {"file": str(file), "service_ms": 1500}
    headers = {"Cornstalk-Durable": "true"}
    texts = [f"once {i}" for i in range(8)]
    answers = await asyncio.gather(
        *(
            stack.clients[i % 2].post("/apps/counted", json=body | {"text": t}, headers=headers)
            for i, t in enumerate(texts)
        )
    )
    assert {answer.status_code for answer in answers} == {200}
    assert sorted(file.read_text().splitlines()) == texts

    async def undriven() -> bool:
        return bool((await stack.broker.api("STREAM.INFO.DRIVE"))["state"]["messages"] == 0)

    await eventually(undriven, within=10)


def nodes_of(text: str) -> int:
    """Calls of units in three calls of Talk: a mark that begins with 0 is made again."""
    marks = [digest_of(Null(name="shead"), text=t) for t in (text, text + "2")]
    marks.append(digest_of(Null(name="shead"), text="".join(answer_to(text)["marks"][:2])))
    return 6 + sum(mark[0] == "0" for mark in marks)


async def test_another_gateway_goes_on_at_once_when_one_stops_in_order(stack: Stack) -> None:
    await only_the_first(stack)
    request = await begun(stack, "stopped", service_ms=20_000)  # the other one is ready long before it ends
    await start(stack, 1)
    stack.children["gateway0"].kill(signal.SIGTERM)
    assert stack.children["gateway0"].wait(10) is not None
    stopped = time.monotonic()

    async def followed() -> bool:
        async with httpx.AsyncClient(trust_env=False) as client:
            subs = await client.get(f"{stack.server.monitor_url}/subsz?subs=1&limit=10000")
        return any(s["subject"] == f"seen.run.{request}.>" for s in subs.json()["subscriptions_list"])

    await eventually(followed, within=ACK_WAIT / 2)
    assert time.monotonic() - stopped < ACK_WAIT
    assert (await stack.clients[1].delete(f"/requests/{request}")).status_code == 202
    assert (await ended(stack, 1, request, within=5))["status"] == "cancelled"
    await start(stack, 0)


async def test_one_that_was_accepted_but_not_queued_is_queued_by_its_retry(stack: Stack) -> None:
    headers = {"Idempotency-Key": "retry", "Cornstalk-Durable": "true", "Accept": "text/event-stream"}
    request = read_options("chain", {"idempotency-key": "retry"}).request
    body = {"text": "retry", "service_ms": 300}
    gateway = stack.children["gateway0"]
    gateway.kill()
    gateway.wait(10)
    gateway.start(CRASH_AT="gateway.accepted")
    await stack.wait_ready(0)
    with pytest.raises(httpx.TransportError):
        await stack.clients[0].post("/apps/chain", json=body, headers=headers)
    gateway.wait(10)
    async with stack.clients[1].stream("POST", "/apps/chain", json=body, headers=headers) as response:
        assert response.headers["cornstalk-request"] == request
    stack.children["gateway1"].kill()
    stack.children["gateway1"].wait(10)
    await start(stack, 0)
    check(await ended(stack, 0, request, within=ACK_WAIT + 10), "retry")
    await start(stack, 1)


@asynccontextmanager
async def drive_of(stack: Stack, nbytes: int) -> AsyncIterator[None]:
    """DRIVE holds no more than this meanwhile."""
    config = (await stack.broker.api("STREAM.INFO.DRIVE"))["config"]
    await stack.broker.api("STREAM.UPDATE.DRIVE", config | {"max_bytes": nbytes})
    try:
        yield
    finally:
        await stack.broker.api("STREAM.UPDATE.DRIVE", config)


async def test_one_that_was_accepted_while_drive_was_full_waits_for_room(stack: Stack) -> None:
    long = "x" * 6_000
    async with drive_of(stack, 10_000):
        first = await begun(stack, long, service_ms=500)
        second = await begun(stack, long, service_ms=0)  # the door is open: there is room for a smaller one
        assert (await ended(stack, 0, first, within=1))["status"] == "done"
        check(await ended(stack, 1, second, within=15), long)


async def test_durable_requests_are_refused_at_the_door_before_drive_is_full(stack: Stack) -> None:
    async with drive_of(stack, 10_000):
        first = await begun(stack, "x" * 8_000, service_ms=1_000)
        refused = await stack.clients[1].post(
            "/apps/chain", json={"text": "more"}, headers={"Cornstalk-Durable": "true"}
        )
        error = refused.json()["error"]
        assert (refused.status_code, error["code"], error["retryable"]) == (429, "overloaded", True)
        assert "DRIVE" in error["message"]
        assert (await stack.clients[1].post("/apps/chain", json={"text": "other"})).status_code == 200
        check(await ended(stack, 0, first, within=15), "x" * 8_000)
