"""Faults that are no signals: connections to NATS that break, answers that are lost, a sidecar that is full."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from sidecar.client import SidecarClient
from sidecar.errors import Full
from tests.broker.proxy import Proxy
from tests.faults.lives import restart, working
from tests.stack import Stack

LARGEST: Final = 8 << 20
SMALLEST: Final = 64 << 10
"""Bytes of the blocks that a rogue client takes."""

Lines = dict[str, Proxy]
"""By the name of the child whose connection to NATS it carries."""


@asynccontextmanager
async def lines(stack: Stack, *names: str) -> AsyncIterator[Lines]:
    """New lives of these children, each with a proxy of its own between it and NATS, also in the lives to come."""
    async with AsyncExitStack() as proxies:
        found: Lines = {}
        for name in names:
            found[name] = await proxies.enter_async_context(Proxy(stack.server.url))
            child = stack.children[name]
            child.env = child.env | {"CORNSTALK_NATS_URL": found[name].url}
            restart(child)
        await working(stack, *(stack.children[name] for name in names if "@" in name))
        for number in range(stack.gateways):
            await stack.wait_ready(number)
        yield found


async def lose_answers(line: Proxy, seconds: float) -> None:
    """What NATS says for so long is lost, PubAcks among it; then the connection breaks."""
    line.muted = True
    await asyncio.sleep(seconds)
    line.cut()


async def fill(stack: Stack, seconds: float) -> None:
    """A rogue client takes all that is left of the sidecar's memory, and goes."""
    rogue = await SidecarClient.connect(stack.socket, name="rogue", quota=0)
    size = LARGEST
    while size >= SMALLEST:
        try:
            await rogue.grant(rogue.live(), size, wait=0.0)
        except Full:
            size //= 2
    await asyncio.sleep(seconds)
    await rogue.close()
