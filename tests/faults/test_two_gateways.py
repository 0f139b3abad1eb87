"""Two gateways drive one request at once: both clients see all of it, whichever gateway stored the end."""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e.apps import one
from tests.faults.client import ask
from tests.stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_both_clients_see_every_chunk(stack: Stack) -> None:
    async def both(number: int) -> None:
        text = f"both {number}"
        asked = (ask([client], "one", {"text": text}, text) for client in stack.clients)
        for answer in await asyncio.gather(*asked):
            assert answer.response == one(text)

    for batch in range(10):
        await asyncio.gather(*(both(batch * 4 + i) for i in range(4)))
