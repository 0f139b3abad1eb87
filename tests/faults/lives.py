"""Lives of children: armed with a crash point, seen to be ready, supervised."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from broker.registry import Registry
from broker.requests import Message
from broker.subjects import DISPATCH_BEAT, WORKERS
from cornstalk.messages import decode
from cornstalk.records import WorkerBeat
from tests.stack import Child, Stack
from tests.waiting import eventually


@asynccontextmanager
async def supervised(stack: Stack) -> AsyncIterator[None]:
    """Dead children are started again, without their crash point."""
    stop = asyncio.Event()
    keeper = asyncio.create_task(stack.keep_alive(stop))
    try:
        yield
    finally:
        stop.set()
        await keeper


def restart(child: Child, **env: str) -> Child:
    """A new life; it is not ready yet."""
    child.kill()
    child.wait(10)
    child.exits.clear()
    return child.start(**env)


async def working(stack: Stack, *children: Child) -> None:
    """The workers have said that they are ready."""

    workers = Registry(stack.broker, WORKERS)

    async def ready() -> bool:
        beats = (decode(WorkerBeat, entry.data) for entry in (await workers.entries()).values())
        return {child.pid for child in children} <= {beat.pid for beat in beats if beat.ready}

    if children:
        await eventually(ready, within=30, every=0.03)


async def lead(stack: Stack, child: Child, **env: str) -> None:
    """A new life of all dispatchers in which `child`, started with `env`, is the active one."""
    others = [c for name, c in stack.children.items() if name.startswith("dispatcher") and c is not child]
    for other in others:
        other.kill()
        other.wait(10)
    restart(child, **env)
    active = asyncio.Event()

    async def heard(message: Message) -> None:
        if msgspec.msgpack.decode(message.data)["active"]:
            active.set()

    subscription = await stack.broker.subscribe_core(DISPATCH_BEAT, heard)
    try:
        async with asyncio.timeout(20):
            await active.wait()
    finally:
        await subscription.close()
    for other in others:
        other.start()


def component(stack: Stack, name: str) -> str:
    """Id of the null component called `name`."""
    (found,) = {c.rpartition("@")[0] for c in stack.children if f"-{name}-" in c}
    return found
