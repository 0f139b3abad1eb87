"""Two gateways drive one request at once: both clients see all of it, whichever gateway stored the end."""

from __future__ import annotations

import asyncio

import pytest

from broker.facts import Facts
from cornstalk.app import load_app
from gateway.drive import Driver
from gateway.events import events
from gateway.follow import Following
from gateway.requests import Run
from tests.e2e.apps import APPS, one
from tests.faults.client import ask, request_id
from tests.stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_both_clients_see_every_chunk(stack: Stack) -> None:
    async def both(number: int) -> None:
        text = f"both {number}"
        asked = (ask([client], "one", {"text": text}, text) for client in stack.clients)
        for answer in await asyncio.gather(*asked):
            assert answer.response == one(text)

    for batch in range(5):
        await asyncio.gather(*(both(batch * 4 + i) for i in range(4)))


async def test_a_driver_that_finds_the_end_stored_by_another_one_sends_every_chunk(stack: Stack) -> None:
    await ask(stack.clients, "one", {"text": "late"}, "late")
    request = request_id("one", "late")
    facts = Facts(stack.broker)
    following = await Following(stack.broker, facts, request).start()
    try:
        await following.read()
        accepted = following.state.accepted
        assert accepted is not None
        app = load_app((APPS / "one.py").read_text())
        driver = Driver(stack.broker, facts, app, following, accepted, app.request(accepted.input))
        run = Run(accepted, following, driver)
        told = [event async for event in events(stack.broker, facts, run, request, {}, 0)]
    finally:
        await following.close()
    assert "".join(event.data["data"] for event in told if event.kind == "chunk") == one("late")["text"]
    assert told[-1].kind == "end"
