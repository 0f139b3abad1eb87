"""What a request used is stored once, with each node that counted once."""

from __future__ import annotations

import signal
import time

from broker.reads import pages
from broker.subjects import DISPATCH, RUNS, USAGE, accepted, usage
from cornstalk.messages import End, Usage, decode
from cornstalk.usage import RequestUsage
from tests.dispatcher.harness import Bench, a_ref, node, value_of
from tests.waiting import eventually


async def stored(bench: Bench, request: str) -> list[RequestUsage]:
    found = [decode(RequestUsage, s.data) async for s in pages(bench.broker, USAGE, usage("a", request))]
    assert len(found) <= 1
    return found


async def done(bench: Bench, request: str, token: str, gen: int, tokens: int) -> None:
    outputs = {"v": token, "t": a_ref(request, token, "h", gen)}
    fact = End(
        node=token, gen=gen, attempt=f"{token}{gen}", outcome="done", outputs=outputs, usage=Usage(tokens_out=tokens)
    )
    await bench.put(f"run.{request}.node.{token}.{gen}.end", fact)


async def request_with_losses(bench: Bench) -> str:
    """`a` is made twice, `join` is lost once, `cut` is a guess given up, `late` never ends."""
    request = await bench.accept()
    await bench.graph(request, node("a"), node("cut"), node("late"), node("join", value_of("a")))
    await done(bench, request, "a", 0, 3)
    await done(bench, request, "cut", 0, 5)
    lost = End(node="join", gen=0, attempt="x", outcome="lost", vanished=(("a", 0),))
    await bench.put(f"run.{request}.node.join.0.end", lost)
    await done(bench, request, "a", 1, 4)
    await done(bench, request, "join", 1, 7)
    await bench.graph(request, index=1, cuts=("cut",))
    await bench.finish(request)
    return request


async def test_each_node_that_counted_is_counted_once(bench: Bench) -> None:
    await bench.component()
    await bench.two_dispatchers()
    request = await request_with_losses(bench)
    (record,) = await eventually(lambda: stored(bench, request))
    assert (record.tenant, record.app, record.status) == ("t", "a", "done")
    assert {(n.node, n.gen, n.attempt, n.usage.tokens_out) for n in record.nodes} == {
        ("a", 0, "a0", 3),
        ("join", 1, "join1", 7),
    }


async def test_a_dispatcher_that_dies_beside_it_stores_no_second_one(bench: Bench) -> None:
    await bench.component()
    active, _ = await bench.two_dispatchers(crash_at="dispatcher.counted")
    request = await request_with_losses(bench)
    assert await active.gone() == -signal.SIGKILL
    await bench.acked()
    (record,) = await stored(bench, request)
    assert len(record.nodes) == 2
    info = await bench.broker.api(f"STREAM.INFO.{USAGE}")
    assert info["state"]["messages"] == 1


async def test_a_request_is_counted_before_it_is_purged_though_its_end_comes_late(bench: Bench) -> None:
    """The dispatcher that got its end died with it, and all others were away for longer than its grace."""
    request = await bench.accept()
    await bench.finish(request)
    pull = await bench.broker.js.pull_subscribe_bind(DISPATCH, RUNS)
    lost = await pull.fetch(2)
    await bench.two_dispatchers("--grace", "0")
    away_until = time.monotonic() + 1.0

    async def comes_again() -> bool:
        for message in lost:
            await message.in_progress()
        return time.monotonic() > away_until

    await eventually(comes_again)
    await bench.acked()
    assert len(await stored(bench, request)) == 1

    async def purged() -> bool:
        return await bench.facts.last(accepted(request)) is None

    await eventually(purged, within=10.0)
