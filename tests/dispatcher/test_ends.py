"""Deadlines, purges and releases, on real processes."""

from __future__ import annotations

import time

from broker.requests import Message
from broker.subjects import ALL_CANCEL_HINTS, SIDECAR_SHARE, accepted, batch_result, cancel, cancel_hint, release_hint
from broker.subjects import graph as graph_subject
from cornstalk.messages import Edge, Graph, Row, encode
from sidecar.messages import Release, Share, decode_releases
from tests.dispatcher.harness import Bench, a_ref, node, value_of
from tests.waiting import eventually


async def test_a_request_expires_at_its_deadline_also_before_its_graph(bench: Bench) -> None:
    await bench.component()
    await bench.two_dispatchers()
    bare, running, longer = await bench.accept(1.0), await bench.accept(1.2), await bench.accept(60.0)
    await bench.graph(running, node("a"))
    for request in (bare, running):
        finish = await bench.until_finish(request)
        assert finish.status == "expired"
        assert finish.error is not None
        assert finish.error.retryable
    await bench.finish(longer)
    assert (await bench.until_finish(longer)).status == "done"


async def test_deadlines_and_purges_survive_the_dispatcher_that_knew_them(bench: Bench) -> None:
    first, _ = await bench.two_dispatchers("--grace", "3")
    expiring, ended = await bench.accept(3.0), await bench.accept()
    await bench.finish(ended)
    await bench.acked()
    first.kill()
    await first.gone()
    assert (await bench.until_finish(expiring, within=8.0)).status == "expired"
    await eventually(lambda: gone(bench, ended), within=8.0)


async def gone(bench: Bench, request: str) -> bool:
    return await bench.facts.last(accepted(request)) is None


async def test_the_request_of_a_batch_row_is_purged_once_its_result_is_stored(bench: Bench) -> None:
    first, _ = await bench.two_dispatchers("--grace", "0.3")
    row, other, plain = await bench.accept(row=Row(job="j", row=7)), await bench.accept(), await bench.accept()
    for request in (row, other):
        await bench.finish(request)
    await eventually(lambda: gone(bench, other))
    first.kill()
    await first.gone()
    await bench.finish(plain)
    await eventually(lambda: gone(bench, plain))
    assert not await gone(bench, row), "its result is not stored, whichever dispatcher looks"
    await bench.broker.publish_stored(batch_result("j", 7), b"{}", deadline=time.time() + 5)
    await eventually(lambda: gone(bench, row), within=10.0)


async def test_a_finished_request_is_purged_after_its_grace_and_leaves_its_end_and_cancel(bench: Bench) -> None:
    await bench.component()
    await bench.two_dispatchers("--grace", "0.5")
    request, resumable = await bench.accept(), await bench.accept(resume_grace=30.0)
    for r in (request, resumable):
        await bench.graph(r, node("a"), node("b", value_of("a")))
        await bench.end(r, "a", outputs={"v": "A"})
        await bench.broker.publish_stored(f"chunk.{r}.a.0.s", encode({"n": 0}), deadline=time.time() + 5, ttl=100.0)
        await bench.cancel(r)
        await bench.until_finish(r)
    await eventually(lambda: gone(bench, request))
    subjects = {m.subject for m in (await bench.facts.read(request)).messages}
    assert subjects == {cancel(request), f"run.{request}.end"}
    chunks = await bench.broker.api("STREAM.INFO.CHUNKS", {"subjects_filter": "chunk.>"})
    assert list(chunks["state"]["subjects"]) == [f"chunk.{resumable}.a.0.s"]
    assert not await gone(bench, resumable)


async def test_what_is_stored_after_the_purge_is_purged_too(bench: Bench) -> None:
    """By a worker or a gateway that was stopped meanwhile, and whether or not a dispatcher remembers the request."""
    await bench.component()
    first, _ = await bench.two_dispatchers("--grace", "0.3")
    request = await bench.accept()
    await bench.graph(request, node("a"))
    await bench.finish(request)
    await eventually(lambda: gone(bench, request))

    async def late(generation: int) -> None:
        await bench.broker.publish_stored(
            f"chunk.{request}.a.{generation}.s", encode({"n": 0}), deadline=time.time() + 5, ttl=100.0
        )
        await bench.end(request, "a", generation, outputs={"v": "late"})

    async def only_its_end() -> bool:
        chunks = await bench.broker.api("STREAM.INFO.CHUNKS", {"subjects_filter": "chunk.>"})
        left = {message.subject for message in (await bench.facts.read(request)).messages}
        return left == {f"run.{request}.end"} and not chunks["state"].get("subjects")

    await late(0)
    await eventually(only_its_end)
    first.kill()
    await first.gone()
    await late(1)
    await eventually(only_its_end, within=8.0)


async def test_sidecars_are_told_which_tensors_nobody_needs(bench: Bench) -> None:
    heard: dict[str, list[Release]] = {"h1": [], "h2": []}
    for host, releases in heard.items():

        async def on_hint(message: Message, releases: list[Release] = releases) -> None:
            releases.extend(decode_releases(message.data))

        await bench.broker.subscribe_core(release_hint(host), on_hint)
    await bench.component()
    await bench.two_dispatchers()
    request = await bench.accept()
    reader = node("y", Edge("x", "t", False))
    nodes = (node("x", outputs={"t": "tensor"}), reader)
    await bench.put(graph_subject(request, 0), Graph(index=0, nodes=nodes, closed=True))
    await bench.end(request, "x", outputs={"t": a_ref(request, "x", "h1")})
    await bench.until_items("x", "y")
    assert heard == {"h1": [], "h2": []}
    await bench.end(request, "y", outputs={"v": 1})
    await eventually(lambda: heard["h1"])
    assert heard == {"h1": [Release(request, "x", 0)], "h2": []}
    for host in heard:
        await bench.broker.publish_core(SIDECAR_SHARE, encode(Share(host, 1, 1, 1)))
    await bench.finish(request)
    await eventually(lambda: Release(request) in heard["h1"] and heard["h2"] == [Release(request)])


async def test_who_purges_a_request_releases_its_tensors_once_more(bench: Bench) -> None:
    """The first release may have died with its dispatcher, or a late attempt may have committed after it."""
    heard: list[Release] = []

    async def on_hint(message: Message) -> None:
        heard.extend(decode_releases(message.data))

    first, _ = await bench.two_dispatchers("--grace", "3")
    request = await bench.accept()
    await bench.finish(request)
    await bench.acked()
    first.kill()
    await first.gone()
    await bench.broker.subscribe_core(release_hint("h1"), on_hint)

    async def purged() -> bool:
        await bench.broker.publish_core(SIDECAR_SHARE, encode(Share("h1", 1, 1, 1)))
        return await gone(bench, request)

    await eventually(purged, within=8.0)
    await eventually(lambda: heard == [Release(request)])


async def test_workers_are_told_when_what_they_run_is_not_needed_any_more(bench: Bench) -> None:
    """By the dispatcher, for the gateway that stored the cancel or the end may have died before it said so."""
    heard: list[str] = []

    async def on_hint(message: Message) -> None:
        heard.append(message.subject)

    await bench.broker.subscribe_core(ALL_CANCEL_HINTS, on_hint)
    await bench.component()
    await bench.two_dispatchers()
    cancelled, ended, done = await bench.accept(), await bench.accept(), await bench.accept()
    for request in (cancelled, ended, done):
        await bench.graph(request, node("a"))
    await bench.end(done, "a", outputs={"v": "A"})
    await bench.finish(done)
    await bench.cancel(cancelled)
    await bench.finish(ended)
    await bench.acked()
    await eventually(lambda: {cancel_hint(cancelled), cancel_hint(ended)} <= set(heard))
    assert cancel_hint(done) not in heard
