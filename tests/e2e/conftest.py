"""One running stack per module; each test brings its own requests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.e2e.apps import APPS
from tests.stack import Stack


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    """Two gateways, two dispatchers, two workers a component, the null apps deployed."""
    async with Stack(gateways=2) as running:
        for name in ("one", "chain"):
            await running.deploy(APPS / f"{name}.py")
        yield running
