"""Storing with retries, typed refusals, and what an outage does to whoever waits."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from broker import topology
from broker.connection import HEADER_ROOM, Broker
from broker.errors import (
    Conflict,
    ConnectFailed,
    DeadlineExceeded,
    Disconnected,
    PayloadTooLarge,
    QueueFull,
    ReadTimeout,
    Rejected,
)
from broker.reads import last_stored
from broker.requests import Message
from broker.server import MAX_PAYLOAD, Server
from tests.broker.proxy import Proxy
from tests.waiting import eventually


def soon(seconds: float = 5.0) -> float:
    return time.time() + seconds


async def test_stored_twice_with_one_id_is_one_message(shared_broker: Broker, request_id: str) -> None:
    put = lambda: shared_broker.publish_stored(f"run.{request_id}.cancel", b"x", deadline=soon(), msg_id=request_id)  # noqa: E731
    first, second = await put(), await put()
    assert (first.duplicate, second.duplicate) == (False, True)
    assert first.seq == second.seq


async def test_a_wrong_expectation_is_a_conflict(shared_broker: Broker, request_id: str) -> None:
    absent = {"Nats-Expected-Last-Subject-Sequence": "0"}
    subject = f"run.{request_id}.cancel"
    await shared_broker.publish_stored(subject, b"x", deadline=soon(), headers=absent)
    with pytest.raises(Conflict) as caught:
        await shared_broker.publish_stored(subject, b"x", deadline=soon(), headers=absent)
    assert caught.value.err_code == 10071
    assert request_id not in str(caught.value)


async def test_largest_payload_goes_and_a_larger_one_is_never_sent(shared_broker: Broker, request_id: str) -> None:
    largest = b"x" * (MAX_PAYLOAD - HEADER_ROOM)
    await shared_broker.publish_stored(f"chunk.{request_id}.n.0.o", largest, deadline=soon())
    with pytest.raises(PayloadTooLarge):
        await shared_broker.publish_stored(f"chunk.{request_id}.n.0.o", largest + b"x", deadline=soon())
    assert shared_broker.connected


async def test_full_stream_is_queue_full_and_not_retried(broker: Broker) -> None:
    await topology.ensure_component(broker, "a", max_bytes=64 << 10)
    for _ in range(7):
        await broker.publish_stored("work.a.batch", b"x" * 8192, deadline=soon())
    before = time.monotonic()
    with pytest.raises(QueueFull):
        await broker.publish_stored("work.a.batch", b"x" * 8192, deadline=soon())
    assert time.monotonic() - before < 1


async def test_subject_of_no_stream_is_retried_until_the_deadline(broker: Broker) -> None:
    with pytest.raises(DeadlineExceeded):
        await broker.publish_stored("work.nobody.batch", b"x", deadline=soon(0.3))
    sent = broker.nc.stats["out_msgs"]
    storing = asyncio.create_task(broker.publish_stored("work.late.batch", b"x", deadline=soon()))
    await eventually(lambda: broker.nc.stats["out_msgs"] > sent + 1)  # refused, and sent again
    await topology.ensure_component(broker, "late")
    assert (await storing).seq == 1


async def test_other_refusals_keep_their_number(broker: Broker) -> None:
    with pytest.raises(Rejected) as caught:
        await broker.publish_stored("drive.app", b"x", deadline=soon(), headers={"Nats-TTL": "5s"})
    assert caught.value.err_code == 10166


async def test_publishes_of_an_outage_are_stored_once_after_it(broker: Broker, nats_server: Server) -> None:
    nats_server.kill()
    await eventually(lambda: not broker.connected)
    storing = [
        asyncio.create_task(broker.publish_stored(f"run.{n}.cancel", b"x", deadline=soon(10), msg_id=str(n)))
        for n in range(20)
    ]
    await asyncio.sleep(0)  # each has begun, and finds nobody
    assert not any(task.done() for task in storing)
    nats_server.start()
    assert len({(await task).seq for task in storing}) == 20
    assert (await broker.api("STREAM.INFO.RUNS"))["state"]["messages"] == 20


async def test_what_finds_the_buffer_full_before_the_outage_is_known_waits_too(
    broker: Broker, nats_server: Server
) -> None:
    """The client has noticed already, and told nobody: a moment that other tasks may run in."""
    nats_server.kill()
    await eventually(lambda: not broker.connected)
    broker._up.set()
    large = bytes(500_000)
    storing = [
        asyncio.create_task(broker.publish_stored(f"run.{n}.cancel", large, deadline=soon(10), msg_id=str(n)))
        for n in range(8)  # twice as much as the client buffers
    ]
    await asyncio.sleep(0)
    nats_server.start()
    assert len({(await task).seq for task in storing}) == 8


async def test_a_request_whose_answer_was_lost_is_repeated_at_once(broker: Broker, nats_server: Server) -> None:
    async with Proxy(nats_server.url) as proxy:
        cut_off = await Broker.connect(proxy.url, name="cut off", token=nats_server.token)
        proxy.muted = True
        storing = asyncio.create_task(cut_off.publish_stored("run.a.cancel", b"x", deadline=soon(10)))
        await eventually(lambda: last_stored(broker, "RUNS", "run.a.cancel"))
        proxy.cut()
        started = time.monotonic()
        assert (await storing).seq == 2  # at least once: without id or expectation it is stored again
        assert time.monotonic() - started < 1
        await cut_off.close()


async def test_a_server_that_falls_silent_is_given_up(broker: Broker, nats_server: Server) -> None:
    """No answer and no end, as when its host is gone, and more to send than any buffer or queue takes."""
    async with Proxy(nats_server.url) as proxy:
        client = await Broker.connect(proxy.url, name="test", token=nats_server.token, ping=0.2)
        again = asyncio.Event()

        async def reconnected() -> None:
            again.set()

        client.on_reconnect(reconnected)
        proxy.freeze()
        sizes = [512_000] * 20 + [1] * 2000
        sending = [asyncio.create_task(client.publish_core("ctl.test", b"x" * size)) for size in sizes]
        storing = asyncio.create_task(client.publish_stored("run.a.cancel", b"x", deadline=soon(10), msg_id="a"))
        await asyncio.wait_for(again.wait(), 10)
        assert not (await storing).duplicate
        await asyncio.gather(*sending, return_exceptions=True)
        await client.close()


async def test_a_server_that_was_frozen_is_heard_again_at_once(broker: Broker, nats_server: Server) -> None:
    """A subscription was given up while it was: the late PONG finds nobody who waits for it, and ends no reader."""

    async def heard(_: Message) -> None:
        pass

    subscription = await broker.subscribe_core("some.subject", heard)
    os.kill(nats_server.pid, signal.SIGSTOP)
    try:
        await subscription.drain()
    finally:
        os.kill(nats_server.pid, signal.SIGCONT)
    assert "streams" in await broker.api("INFO", timeout=3.0)


async def test_a_reader_that_fails_ends_its_connection(broker: Broker, nats_server: Server) -> None:
    """Whatever nats-py does not foresee: a connection that nobody reads is deaf until three pings are unanswered."""
    broker.nc._pongs.insert(0, None)  # what the reader trips over
    await broker.nc._send_ping()
    assert "streams" in await broker.api("INFO", timeout=3.0)


async def test_outage_past_the_deadline(broker: Broker, nats_server: Server) -> None:
    nats_server.kill()
    await eventually(lambda: not broker.connected)
    with pytest.raises(DeadlineExceeded):
        await broker.publish_stored("run.a.cancel", b"x", deadline=soon(0.2))
    with pytest.raises((ReadTimeout, Disconnected)):
        await broker.api("INFO", timeout=0.2)


async def test_reconnect_callbacks(broker: Broker, nats_server: Server, caplog: pytest.LogCaptureFixture) -> None:
    called: list[str] = []

    async def good() -> None:
        called.append("good")

    async def bad() -> None:
        raise ValueError("secret")

    async def removed() -> None:
        called.append("removed")

    broker.on_reconnect(bad)
    broker.on_reconnect(good)
    remove = broker.on_reconnect(removed)
    remove()
    remove()
    nats_server.kill()
    await eventually(lambda: not broker.connected)
    nats_server.start()
    await eventually(lambda: called == ["good"])
    assert "ValueError" in caplog.text
    assert "secret" not in caplog.text


async def test_core_subscription_tells_losses_and_survives_a_restart(broker: Broker, nats_server: Server) -> None:
    got: list[bytes] = []
    lost: list[bool] = []

    async def take(message: Message) -> None:
        got.append(message.data)

    subscription = await broker.subscribe_core("ctl.test", take, on_lost=lambda: lost.append(True))
    await broker.publish_core("ctl.test", b"1")
    await eventually(lambda: got == [b"1"])
    nats_server.kill()
    await eventually(lambda: lost)
    nats_server.start()
    await eventually(lambda: broker.connected)
    await broker.publish_core("ctl.test", b"2")
    await eventually(lambda: got == [b"1", b"2"])
    await subscription.close()
    await subscription.close()
    await broker.publish_core("ctl.test", b"3")
    await broker.nc.flush()
    assert got == [b"1", b"2"]


async def test_what_was_sent_before_closing_arrives(broker: Broker, nats_server: Server) -> None:
    got: list[bytes] = []

    async def take(message: Message) -> None:
        got.append(message.data)

    await broker.subscribe_core("ctl.test", take)
    await broker.nc.flush()
    other = await Broker.connect(nats_server.url, name="other", token=nats_server.token)
    for n in range(50):
        await other.publish_core("ctl.test", b"%d" % n)
    await other.close()
    await eventually(lambda: got == [b"%d" % n for n in range(50)])


async def test_a_slow_subscriber_is_told_that_messages_were_dropped(broker: Broker) -> None:
    go = asyncio.Event()
    lost: list[bool] = []

    async def slow(message: Message) -> None:
        await go.wait()

    subscription = await broker.subscribe_core("ctl.test", slow, on_lost=lambda: lost.append(True))
    for _ in range(8300):
        await broker.publish_core("ctl.test", b"")
    await eventually(lambda: lost)
    assert broker.connected
    go.set()
    await subscription.close()


async def test_closed_connection_raises(nats_server: Server) -> None:
    broker = await Broker.connect(nats_server.url, name="test", token=nats_server.token)
    told: list[bool] = []
    broker.on_closed = lambda: told.append(True)
    await broker.close()
    await broker.close()
    assert not broker.connected
    assert told == []
    for call in (
        broker.publish_core("a", b""),
        broker.publish_stored("a", b"", deadline=soon()),
        broker.api("INFO"),
        broker.subscribe_core("a", _ignore),
    ):
        with pytest.raises(Disconnected):
            await call


async def _ignore(message: Message) -> None:
    pass


async def test_a_token_refused_after_a_restart_ends_the_process_by_on_closed(nats_server: Server) -> None:
    broker = await Broker.connect(nats_server.url, name="test", token=nats_server.token)
    closed = asyncio.Event()
    broker.on_closed = closed.set
    nats_server.stop()
    nats_server.token = "another"
    nats_server.start()
    await asyncio.wait_for(closed.wait(), 5)
    await broker.close()


async def test_from_env(nats_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CORNSTALK_NATS_URL", raising=False)
    with pytest.raises(ConnectFailed, match="CORNSTALK_NATS_URL"):
        await Broker.from_env("test")
    monkeypatch.setenv("CORNSTALK_NATS_URL", nats_server.url)
    monkeypatch.setenv("CORNSTALK_NATS_TOKEN_FILE", "/nowhere")
    with pytest.raises(ConnectFailed, match="CORNSTALK_NATS_TOKEN_FILE"):
        await Broker.from_env("test")
    monkeypatch.setenv("CORNSTALK_NATS_TOKEN_FILE", str(nats_server.token_file))
    broker = await Broker.from_env("test")
    assert broker.connected
    await broker.close()
