"""One running stack per module: each test crashes what it needs to crash, and finds it alive again."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.e2e.apps import APPS
from tests.faults.apps import FAULT_APPS
from tests.stack import Stack

FAST = {"CORNSTALK_ACK_WAIT": "2", "CORNSTALK_GRACE": "3"}
"""Seconds: redelivery without a last will, and until a finished request is purged. 15 and 60 by default."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    """Two gateways, two dispatchers, two workers a component, the null apps deployed."""
    async with Stack(gateways=2, env=FAST) as running:
        for path in (APPS / "one.py", APPS / "chain.py", FAULT_APPS / "lineage.py", FAULT_APPS / "turns.py"):
            await running.deploy(path)
        yield running
