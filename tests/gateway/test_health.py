"""/healthz and /readyz through an outage of NATS; what the service processes weigh and import."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from broker.server import Server
from tests.e2e.apps import APPS, chain
from tests.stack import ROOT, Stack
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMIT_MB = 150
SERVICES = ("gateway0", "dispatcher0", "dispatcher1", "operator", "sidecar")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    async with Stack(sidecar_bytes=64 << 20) as running:
        await running.deploy(APPS / "chain.py")
        yield running


async def test_services_stay_small_under_load_and_without_torch(stack: Stack) -> None:
    for i in range(60):
        answer = await stack.clients[0].post("/apps/chain", json={"text": f"load {i}"})
        assert answer.json()["response"] == chain(f"load {i}")
    for name in SERVICES:
        process = psutil.Process(stack.children[name].pid)
        memory = process.memory_info()
        assert (memory.rss - memory.shared) / 2**20 < LIMIT_MB, name  # a sidecar's arenas are shared
        if name != "sidecar":
            assert memory.rss / 2**20 < LIMIT_MB, name
        maps = Path(f"/proc/{process.pid}/maps").read_text()
        assert "torch" not in maps, name


@pytest.mark.parametrize(
    "module", ["gateway.__main__", "dispatcher.__main__", "dispatcher.operator", "sidecar.__main__"]
)
async def test_no_service_imports_torch(module: str) -> None:
    code = f"import {module}, sys; print('torch' in sys.modules)"
    run = await asyncio.create_subprocess_exec(sys.executable, "-c", code, cwd=ROOT, stdout=subprocess.PIPE)
    out, _ = await asyncio.wait_for(run.communicate(), 30)
    assert out.strip() == b"False"


async def test_ready_says_what_is_missing_and_comes_back(stack: Stack) -> None:
    client = stack.clients[0]
    assert (await client.get("/readyz")).json() == {"status": "ready"}
    stack.server.kill()

    async def not_ready() -> str:
        answer = await client.get("/readyz")
        return str(answer.json()["why"]) if answer.status_code == 503 else ""

    assert "NATS is away" in await eventually(not_ready, within=5)
    assert (await client.get("/healthz")).json() == {"status": "ok"}
    refused = await client.post("/apps/chain", json={"text": "during"}, headers={"Cornstalk-Deadline": "2"})
    assert refused.status_code == 503, refused.text
    assert refused.json()["error"]["retryable"] is True
    assert refused.headers["retry-after"]
    stack.server.start()
    await stack.wait_ready()
    answer = await client.post("/apps/chain", json={"text": "again"})
    assert answer.json()["response"] == chain("again")
    assert all(child.alive for child in stack.children.values())


async def test_a_gateway_whose_token_is_refused_ends() -> None:
    """So that its supervisor starts it again: a closed connection never comes back by itself."""
    async with Stack() as running:
        store, port = running.home / "nats", running.server.url.rpartition(":")[2]
        running.server.kill()
        other = Server(store.with_name("other"), port=int(port), token="f" * 32)
        other.start()
        try:
            await eventually(lambda: not running.children["gateway0"].alive, within=20)
        finally:
            other.kill()
