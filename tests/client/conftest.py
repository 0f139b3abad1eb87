"""One running stack per module with two gateways, and clients of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from cornstalk import AsyncClient
from tests.e2e.apps import APPS
from tests.stack import Stack


def urls_of(stack: Stack) -> list[str]:
    return [f"http://127.0.0.1:{port}" for port in stack.ports]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    async with Stack(gateways=2, dispatchers=1, replicas=1) as running:
        for name in ("one", "chain", "mixed"):
            await running.deploy(APPS / f"{name}.py")
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(stack: Stack) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(urls_of(stack), admin_token=stack.admin) as running:
        yield running
