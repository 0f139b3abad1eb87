"""Facts in, items out: two dispatcher processes, one active."""

from __future__ import annotations

import time
from typing import Final

from broker.reads import last_stored, pages
from broker.server import MAX_PAYLOAD
from broker.subjects import DLQ, end, finish, graph, work, work_stream
from broker.uploads import Spool
from broker.work import LARGEST, publish_item
from cornstalk.graph import decide, fold
from cornstalk.large import marks, with_large
from cornstalk.large import value_of as value_of_mark
from cornstalk.messages import Accepted, Edge, End, Graph, StreamRef, WorkItem, decode, encode
from tests.dispatcher.harness import Bench, a_ref, newer, node, value_of
from tests.waiting import eventually

TRACE: Final = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"


async def test_a_graph_sends_its_ready_nodes_and_an_end_its_consumers(bench: Bench) -> None:
    await bench.component()
    await bench.two_dispatchers()
    request = await bench.accept(trace=TRACE)
    await bench.graph(request, node("a"), node("b"), node("join", value_of("a"), value_of("b")))
    items = await bench.until_items("a", "b")
    assert {i.request for i in items} == {request}
    await bench.end(request, "a", outputs={"v": "A"})
    await bench.acked()
    await bench.until_items("a", "b")
    await bench.end(request, "b", outputs={"v": "B"})
    join = (await bench.until_items("a", "b", "join"))[-1]
    assert join.inputs == {"in": ["A", "B"]}
    assert join.trace == TRACE


async def test_a_stream_edge_is_sent_at_the_first_piece(bench: Bench) -> None:
    await bench.component()
    await bench.two_dispatchers()
    request = await bench.accept()
    streams = node("llm", outputs={"text": "stream"})
    await bench.graph(
        request, streams, node("voice", Edge("llm", "text", True)), node("whole", Edge("llm", "text", False))
    )
    await bench.until_items("llm")
    await bench.first(request, "llm", "text")
    items = await bench.until_items("llm", "voice")
    assert items[-1].inputs == {"in": [StreamRef(request, "llm", 0, "text")]}
    await bench.end(request, "llm", outputs={"text": 3})
    await bench.until_items("llm", "voice", "whole")


async def test_the_drivers_items_and_the_dispatchers_are_one(bench: Bench) -> None:
    await bench.component()
    await bench.two_dispatchers()
    for _ in range(5):
        request = await bench.accept()
        fact = Graph(index=0, nodes=(node("a"), node("b")))
        await bench.put(graph(request, 0), fact)
        accepted = Accepted(request=request, tenant="t", app="a", app_version="1", deadline=time.time() + 60)
        for item in decide(fold([accepted, fact]), fact):
            assert isinstance(item, WorkItem)
            await publish_item(bench.broker, item)
    await bench.acked()
    assert await bench.sent() == 10


async def test_a_cancel_ends_the_request_also_before_its_graph(bench: Bench) -> None:
    await bench.component()
    await bench.two_dispatchers()
    early, late = await bench.accept(), await bench.accept()
    await bench.cancel(early)
    await bench.graph(late, node("a"), node("b", value_of("a")))
    await bench.until_items("a")
    await bench.cancel(late)
    for request in (early, late):
        assert (await bench.until_finish(request)).status == "cancelled"
    await bench.graph(early, node("a"))
    await bench.end(late, "a", outputs={"v": "A"})
    await bench.acked()
    assert await bench.sent() == 1


async def test_a_full_queue_stalls_no_other_component(bench: Bench) -> None:
    await bench.component("full", max_msgs_per_lane=2)
    await bench.component("free")
    await bench.two_dispatchers()
    stuck = [await bench.accept() for _ in range(300)]  # more than a dispatcher has credits
    for request in stuck:
        await bench.graph(request, node("a", component="full"))
    request = await bench.accept()
    await bench.graph(request, node("b", component="free"))
    await bench.until_items("b", component="free")
    await bench.worker("full")
    await eventually(lambda: len(bench.ran) == len(stuck), within=20.0)
    assert {r for r, _, _ in bench.ran} == set(stuck)
    await bench.acked()


async def test_a_component_without_queue_stalls_no_other_component_and_is_served_when_it_comes(bench: Bench) -> None:
    await bench.component("free")
    await bench.two_dispatchers()
    orphan, request = await bench.accept(), await bench.accept()
    await bench.graph(orphan, node("a", component="later"))
    await bench.graph(request, node("b", component="free"))
    await bench.until_items("b", component="free")
    await bench.component("later")
    await bench.until_items("a", component="later")


async def test_values_that_add_up_to_a_large_item_leave_it(bench: Bench) -> None:
    """Each is small enough for the End it came in; where many meet, the item has marks of them (rule 11)."""
    await bench.component()
    await bench.two_dispatchers()
    request = await bench.accept(trace=TRACE)
    leaves = [f"n{i}" for i in range(20)]
    await bench.graph(request, *(node(n) for n in leaves), node("join", *(value_of(n) for n in leaves)))
    values = [f"{i:02}" * 30_000 for i in range(20)]
    for leaf, value in zip(leaves, values, strict=True):
        await bench.end(request, leaf, outputs={"v": value})
    join = (await bench.until_items(*leaves, "join"))[-1]
    assert sum(map(len, values)) > MAX_PAYLOAD
    assert len(encode(join)) < LARGEST
    (mark,) = marks(join.inputs)
    stored = await Spool(bench.broker).get(mark, timeout=5)
    assert with_large(join.inputs, {mark: value_of_mark(mark, stored)}) == {"in": values}


async def test_an_item_whose_references_alone_are_too_large_fails_its_node(bench: Bench) -> None:
    await bench.component()
    await bench.two_dispatchers()
    request = await bench.accept()
    many = [Edge("a", "t", False)] * 8000
    await bench.graph(request, node("a", outputs={"t": "tensor"}), node("big", *many))
    await bench.end(request, "a", outputs={"t": a_ref(request, "a", "h" * 100)})
    stored = await eventually(lambda: bench.facts.last(end(request, "big", 0)), within=10.0)
    assert stored is not None
    failure = decode(End, stored.data)
    assert failure.outcome == "failed"
    assert failure.error is not None
    assert failure.error.code == "item_too_large"


async def test_an_item_says_in_its_headers_what_a_look_at_the_queue_needs(bench: Bench) -> None:
    """Rule 11: W3C trace context, deadline, lane, tenant."""
    await bench.component()
    await bench.two_dispatchers()
    request = await bench.accept(trace=TRACE, lane="batch")
    await bench.graph(request, node("a"))
    (item,) = await bench.until_items("a")
    stored = await last_stored(bench.broker, work_stream("c"), work("c", "batch"))
    assert stored is not None
    wanted = {
        "traceparent": TRACE,
        "Cornstalk-Deadline": f"{item.deadline:.3f}",
        "Cornstalk-Lane": "batch",
        "Cornstalk-Tenant": "t",
    }
    assert wanted.items() <= stored.headers.items()


async def test_a_malformed_fact_ends_its_request_once_and_is_kept_as_dead_letter(bench: Bench) -> None:
    await bench.component()
    await bench.two_dispatchers()
    request, other = await bench.accept(), await bench.accept()
    await bench.put(graph(request, 0), b"\xc1 no msgpack")
    await bench.graph(other, node("a"))
    failed = await bench.until_finish(request)
    assert failed.status == "failed"
    assert failed.error is not None
    assert failed.error.code == "malformed"
    await bench.until_items("a")
    await bench.acked()
    letters = [stored async for stored in pages(bench.broker, DLQ, "dlq.>")]
    assert [s.subject for s in letters] == [f"dlq.dispatcher.malformed.{request}.none.0"]
    assert letters[0].data == b"\xc1 no msgpack"


async def test_a_malformed_fact_is_taken_off_though_there_is_no_room_for_its_dead_letter(bench: Bench) -> None:
    config = (await bench.broker.api(f"STREAM.INFO.{DLQ}"))["config"]
    await bench.broker.api(f"STREAM.UPDATE.{DLQ}", config | {"max_bytes": 1})
    await bench.two_dispatchers()
    request = await bench.accept()
    await bench.put(graph(request, 0), b"\xc1 no msgpack")
    assert (await bench.until_finish(request)).status == "failed"
    await bench.acked()


async def test_a_fact_of_a_newer_release_is_handed_back_not_judged(bench: Bench) -> None:
    await bench.component()
    await bench.two_dispatchers()
    request, other = await bench.accept(), await bench.accept()
    await bench.put(graph(request, 0), newer(Graph(index=0, nodes=(node("a"),))))
    await bench.graph(other, node("b"))
    await bench.until_items("b")

    async def one_left() -> bool:
        info = await bench.broker.api("CONSUMER.INFO.RUNS.dispatch")
        return info["num_pending"] == 0 and info["num_ack_pending"] == 1

    await eventually(one_left)
    assert await bench.facts.last(finish(request)) is None


async def test_an_orphan_fact_is_ignored(bench: Bench) -> None:
    await bench.component()
    await bench.two_dispatchers()
    await bench.graph("unknown", node("a"))
    await bench.end("unknown", "a", outputs={"v": 1})
    await bench.acked()
    assert await bench.sent() == 0


async def test_a_wide_graph_and_its_join_go_out_whole(bench: Bench) -> None:
    await bench.component()
    await bench.two_dispatchers()
    await bench.worker()
    request = await bench.accept()
    width = 400
    leaves = [node(f"n{i}") for i in range(width)]
    await bench.graph(request, *leaves, node("join", *(value_of(n.token) for n in leaves)))
    await eventually(lambda: len(bench.ran) == width + 1, within=20.0)
    assert await bench.sent() == width + 1
