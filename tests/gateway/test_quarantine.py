"""A pass that does not come back: its gateway ends, its app is out of service, and nothing else is harmed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from cornstalk.tasks.null import Null
from gateway.quarantine import EXIT
from tests.e2e.apps import APPS, digest_of, one
from tests.gateway.sse import frames, live, told
from tests.stack import Stack
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

STREAMED = {"Accept": "text/event-stream", "Cornstalk-Resume-Grace": "30"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    async with Stack(gateways=2) as running:
        for name in ("one", "stuck"):
            await running.deploy(APPS / f"{name}.py")
        yield running


async def begun(client: httpx.AsyncClient, app: str, **body: object) -> str:
    """A request whose client is cut off when its gateway ends."""
    began: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def ask() -> None:
        async with client.stream("POST", f"/apps/{app}", json=body, headers=STREAMED) as response:
            began.set_result(response.headers["cornstalk-request"])
            async for _ in live(response):
                pass

    asking = asyncio.create_task(ask())
    asking.add_done_callback(lambda task: task.exception())
    return await began


async def test_a_pass_that_does_not_come_back(stack: Stack) -> None:
    a, b = stack.clients
    gateway = stack.children["gateway0"]
    other = await begun(a, "one", text="other", service_ms=2_000)
    stuck = await begun(a, "stuck", text="x", stuck=True)
    await eventually(lambda: not gateway.alive, within=30, every=0.1)
    assert gateway.wait(1) == EXIT

    ended = frames((await b.get(f"/requests/{other}/events")).text)
    assert ended[-1]["event"] == "end"
    assert told(ended, "text") == one("other")["text"]
    (event,) = frames((await b.get(f"/requests/{stuck}/events")).text)
    assert (event["event"], event["data"]["error"]["code"]) == ("error", "app_quarantined")
    refused = await b.post("/apps/stuck", json={"text": "y"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "app_quarantined")
    assert "did not come back, at app.py:26, and" in refused.json()["error"]["message"]
    listed = {app["name"]: app for app in (await b.get("/apps")).json()["apps"]}
    assert listed["stuck"]["error"]["code"] == "app_quarantined"
    assert "error" not in listed["one"]

    gateway.start()
    await stack.wait_ready(0)
    mended = (APPS / "stuck.py").read_text().replace("time.sleep(3600)", "pass")
    path = stack.home / "stuck.py"
    path.write_text(mended)
    await stack.deploy(path)
    for client in (a, b):
        answer = await client.post("/apps/stuck", json={"text": "y", "stuck": True})
        assert answer.json()["response"] == {"digest": digest_of(Null(name="value"), text="y")}
