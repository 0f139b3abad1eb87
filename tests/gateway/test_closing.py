"""Close codes of connections that cannot go on: the broker is away, the app is broken, the client takes nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psutil
import pytest
import pytest_asyncio
import uvicorn
from websockets.exceptions import ConnectionClosed

from broker.connection import Broker
from broker.registry import Registry
from broker.subjects import APPS as BUCKET
from cornstalk.messages import encode
from cornstalk.records import AppRecord
from gateway import websocket
from gateway.__main__ import make_app
from gateway.origins import Origins
from gateway.service import Service
from tests.e2e.apps import APPS
from tests.gateway.ws import connected, narrow
from tests.stack import Stack, free_port
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    async with Stack() as running:
        await running.deploy(APPS / "live.py")
        yield running


async def test_1011_for_an_app_that_cannot_be_loaded_here(stack: Stack) -> None:
    """It was deployed through a gateway of another release, say."""
    record = AppRecord(name="odd", version="v", source="1 / 0\n", components={}, deployed_at=time.time())
    await Registry(stack.broker, BUCKET).put("odd", encode(record))
    async with connected(stack.ports[0], "odd") as client:
        code, reason = await client.closed()
    await Registry(stack.broker, BUCKET).delete("odd")
    assert code == 1011
    assert "ZeroDivisionError" in reason


@asynccontextmanager
async def gateway_here(stack: Stack) -> AsyncIterator[tuple[int, Any]]:
    """A gateway in this process: its port, and its connections."""

    async def service() -> Service:
        broker = await Broker.connect(stack.server.url, name="gateway", token=stack.server.token)
        return Service(broker, "no admin is needed here")

    port = free_port()
    app = make_app(service, Origins())
    options = {"ws": "websockets-sansio", "ws_per_message_deflate": False}  # as in gateway/__main__.py
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning", **options))
    serving = asyncio.create_task(server.serve())
    await eventually(lambda: server.started, within=10)
    yield port, app.state.service.sockets
    server.should_exit = True
    await serving


async def test_1008_for_who_takes_nothing(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its request is left for its grace, and goes on where the client had heard it last."""
    monkeypatch.setattr(websocket, "TAKE_WAIT", 1.0)
    sound = b"\1\2" * (16 << 20)
    async with connected(stack.ports[0], "live") as writer:
        options = {"resume_grace": 60, "deadline": 120}
        await writer.send("invoke", id="w", input={"text": "x"}, open=["sound"], options=options)
        request = (await writer.receive())["request"]
        reading = asyncio.create_task(writer.to_end("w"))
        for start in range(0, len(sound), 1 << 18):
            await writer.piece("w", "sound", sound[start : start + (1 << 18)])
        await writer.send("input_end", id="w", field="sound")
        await reading
    async with gateway_here(stack) as (port, sockets), connected(port, "live", **narrow(port)) as idle:
        await idle.send("resume", id="i", request=request)
        await eventually(lambda: any(c._close.done() for c in sockets._open), within=20)
        with pytest.raises(ConnectionClosed):
            await idle.to_end("i")
        assert (await idle.closed())[0] == 1008
    heard = idle.told("i", "sound")
    async with connected(stack.ports[0], "live") as again:
        last = max(f.get("seq", 0) for f in idle.frames)
        await again.send("resume", id="a", request=request, after=last)
        await again.to_end("a")
    assert 0 < len(heard) < len(sound)
    assert heard + again.told("a", "sound") == sound


async def test_1013_while_the_broker_is_away(stack: Stack) -> None:
    nats = psutil.Process(stack.server.pid)
    nats.suspend()
    try:
        async with connected(stack.ports[0], "live") as client:
            code, reason = await client.closed()
    finally:
        nats.resume()
    assert code == 1013
    assert reason
