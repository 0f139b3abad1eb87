"""kill -9 at every line of the loop: nothing is lost, nothing is sent twice."""

from __future__ import annotations

import asyncio
import signal

import pytest

from tests.dispatcher.harness import Bench, node, text, value_of
from tests.waiting import eventually

POINTS = ["received:3", "read:1", "decided:9", "half:2", "published:7", "acked:9"]
"""Crash point and which passage of it: early ones meet accepted facts and graphs, later ones ends."""

GRAPH = [
    node("a"),
    node("b"),
    node("left", value_of("a"), value_of("b")),
    node("right", value_of("b")),
    node("join", value_of("left"), value_of("right")),
]
ANSWER = "join(left(a(),b()),right(b()))"


async def run_all(bench: Bench, count: int) -> list[str]:
    """Starts requests; the scripted worker runs their nodes."""
    requests = [await bench.accept() for _ in range(count)]
    await asyncio.gather(*(bench.graph(r, *GRAPH) for r in requests))
    return requests


async def check_once(bench: Bench, requests: list[str], within: float) -> None:
    """Each request has its right last value, each node was sent once and ran once."""
    await check_right(bench, requests, within)
    assert len(bench.ran) == await bench.sent() == len(requests) * len(GRAPH)


async def check_right(bench: Bench, requests: list[str], within: float) -> None:
    """Each request has its right last value; nothing waits any more."""
    wanted = {(r, n.token, 0) for r in requests for n in GRAPH}
    await eventually(lambda: set(bench.ran) == wanted, within)
    await bench.acked()
    for request in requests:
        log = await bench.state(request)
        end = log.done("join")
        assert end is not None
        assert end.outputs == {"v": ANSWER}
        assert log.open() == []


@pytest.mark.parametrize("point", POINTS)
async def test_a_dispatcher_killed_at_any_line(bench: Bench, point: str) -> None:
    await bench.component()
    active, standby = await bench.two_dispatchers(crash_at=f"dispatcher.{point}")
    await bench.worker()
    requests = await run_all(bench, 4)
    assert await active.gone() == -signal.SIGKILL
    await check_once(bench, requests, within=15.0)
    assert standby.code is None


async def test_dispatchers_killed_one_after_the_other(bench: Bench) -> None:
    await bench.component()
    first, second = await bench.two_dispatchers()
    await bench.worker()
    requests = await run_all(bench, 20)
    await eventually(lambda: len(bench.ran) >= 5)
    first.kill()
    requests += await run_all(bench, 5)
    third = await bench.start()
    await eventually(lambda: len(bench.ran) >= 110, within=15.0)
    second.kill()
    requests += await run_all(bench, 5)
    await check_once(bench, requests, within=15.0)
    assert third.code is None


async def test_the_server_killed_and_started_again(bench: Bench) -> None:
    await bench.component()
    await bench.two_dispatchers()
    await bench.worker()
    requests = await run_all(bench, 20)
    await eventually(lambda: len(bench.ran) >= 5)
    bench.server.kill()
    bench.server.start()
    await check_right(bench, requests, within=20.0)  # an ack that the server lost makes an item run again


def test_the_answer_is_what_the_nodes_say() -> None:
    a, b = text("a", []), text("b", [])
    assert text("join", [text("left", [a, b]), text("right", [b])]) == ANSWER
