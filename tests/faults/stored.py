"""What is stored, queued and held by a running stack, as tests look at it."""

from __future__ import annotations

from broker import topology
from broker.facts import Facts
from broker.reads import Stored, pages
from broker.subjects import ALL_CHUNKS, CHUNKS, DRIVE, RUNS, chunks_of, facts_of, parse_run
from cornstalk.messages import Chunk, End, decode
from sidecar.client import SidecarClient
from sidecar.messages import Stats
from tests.stack import Stack
from tests.waiting import eventually


async def ends(stack: Stack, request: str) -> list[End]:
    """Ends of the nodes of a request, as stored."""
    log = await Facts(stack.broker).read(request)
    return [decode(End, s.data) for s in log.messages if parse_run(s.subject).kind == "node-end"]


async def chunks(stack: Stack, request: str) -> list[tuple[Stored, Chunk]]:
    return [(s, decode(Chunk, s.data)) async for s in pages(stack.broker, CHUNKS, chunks_of(request))]


async def progress(stack: Stack, request: str) -> list[float]:
    """When each fact and each chunk of a request was stored, Unix seconds, ascending."""
    facts = [s.time async for s in pages(stack.broker, RUNS, facts_of(request), timeout=20.0)]
    return sorted(facts + [s.time async for s in pages(stack.broker, CHUNKS, chunks_of(request), timeout=20.0)])


async def left_subjects(stack: Stack) -> list[str]:
    """Subjects of requests that are stored, beside the tombstones and cancels of finished ones."""
    facts = [s.subject async for s in pages(stack.broker, RUNS, "run.>")]
    kept = ("end", "cancel")
    left = [subject for subject in facts if parse_run(subject).kind not in kept]
    return left + [s.subject async for s in pages(stack.broker, CHUNKS, ALL_CHUNKS)]


def files(stack: Stack) -> set[str]:
    """What lies beside the logs and the store of NATS."""
    found = (path.relative_to(stack.home) for path in stack.home.rglob("*"))
    return {str(path) for path in found if path.suffix != ".log" and path.parts[0] != "nats"}


async def begun(stack: Stack, request: str, count: int) -> None:
    """Returns when so many chunks are stored."""

    async def stored() -> bool:
        return len(await chunks(stack, request)) >= count

    await eventually(stored, within=15)


async def held(stack: Stack, count: int) -> None:
    """Returns when workers hold so many items, and the sidecar knows of it."""

    async def willed() -> bool:
        return wills_for_items(stack, await sidecar_stats(stack)) >= count

    await eventually(willed, within=15)


def wills_for_items(stack: Stack, stats: Stats) -> int:
    """Beside the one that each worker leaves for itself."""
    return stats.wills - sum(child.alive for name, child in stack.children.items() if "@" in name)


async def sidecar_stats(stack: Stack) -> Stats:
    client = await SidecarClient.connect(stack.socket, name="test", quota=0)
    try:
        return await client.stats()
    finally:
        await client.close()


async def queues_empty(stack: Stack, within: float) -> None:
    """Nothing waits and nothing runs, in any queue."""
    for component in await topology.components(stack.broker):

        async def idle(component: str = component) -> bool:
            load = await topology.backlog(stack.broker, component)
            return not any((*load.pending.values(), *load.in_flight.values()))

        await eventually(idle, within=within, every=0.05)

    async def undriven() -> bool:
        info = await stack.broker.api(f"STREAM.INFO.{DRIVE}")
        return bool(info["state"]["messages"] == 0)

    await eventually(undriven, within=within, every=0.05)


async def nothing_left(stack: Stack, within: float) -> None:
    """The queues are empty, and no tensor, lease or last will is held by anybody."""
    await queues_empty(stack, within)

    async def freed() -> bool:
        stats = await sidecar_stats(stack)
        return (stats.committed_bytes - stats.cached_bytes, stats.leases, wills_for_items(stack, stats)) == (0, 0, 0)

    await eventually(freed, within=within, every=0.05)
