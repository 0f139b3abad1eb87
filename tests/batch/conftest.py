"""One running stack per module, and a client that knows nothing but NATS."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.batch.client import Client
from tests.e2e.apps import APPS
from tests.stack import Stack

FAST = {"CORNSTALK_ACK_WAIT": "2", "CORNSTALK_GRACE": "3"}
"""Seconds: until what a dead process held goes on elsewhere, and until a finished request is purged."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    """Two gateways, two dispatchers, two workers a component, the null apps deployed."""
    async with Stack(gateways=2, env=FAST) as running:
        for name in ("one", "mixed"):
            await running.deploy(APPS / f"{name}.py")
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(stack: Stack) -> AsyncIterator[Client]:
    async with Client(stack.server) as connected:
        yield connected
