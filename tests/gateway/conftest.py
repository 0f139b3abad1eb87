"""One running stack per module, with an app that takes every kind of input."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.e2e.apps import APPS
from tests.stack import Stack


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    async with Stack() as running:
        await running.deploy(APPS / "mixed.py")
        yield running
