"""WebSocket connections on real processes: several requests at once, the content of SSE, errors, closing, pressure."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import re
import signal
import socket
import struct
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import httpx
import psutil
import pytest
import pytest_asyncio
from websockets.exceptions import ConnectionClosed

from cornstalk.frames import LIMIT as FRAME_LIMIT
from cornstalk.frames import join
from gateway.options import frame_options
from gateway.websocket import REQUESTS
from tests.e2e.apps import APPS, live_answer, one
from tests.gateway.ws import Client, Frame, connected, narrow
from tests.stack import ROOT, Stack
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    async with Stack(gateways=2) as running:
        for name in ("one", "live", "twice"):
            await running.deploy(APPS / f"{name}.py")
        yield running


async def status(stack: Stack, request: str) -> str:
    return str((await stack.clients[1].get(f"/requests/{request}")).json()["status"])


async def ends(stack: Stack, request: str, how: str) -> None:
    async def ended() -> bool:
        return await status(stack, request) == how

    await eventually(ended, within=5)


# ------------------------------------------------------------ what is told


async def test_several_requests_at_once(stack: Stack) -> None:
    texts = {f"r{i}": f"text {i}" for i in range(8)}
    async with connected(stack.ports[0], "one") as client:
        for id, text in texts.items():
            await client.send("invoke", id=id, input={"text": text, "pieces": 6, "service_ms": 30})
        await client.to_end(*texts)
    for id, text in texts.items():
        accepted, *chunks, end = client.of(id)
        assert (accepted["type"], accepted["inputs"]) == ("accepted", {})
        assert {f["type"] for f in chunks} == {"chunk"}
        assert client.told(id, "text") == one(text, 6)["text"]
        assert (end["type"], end["response"]) == ("end", {"digest": one(text)["digest"]})
        assert end["request"] == accepted["request"]
        seqs = [f["seq"] for f in chunks]
        assert seqs == sorted(set(seqs))


async def test_none_waits_for_the_end_of_another(stack: Stack) -> None:
    """Each is told what it has said before the next says more, and all are open to the last: no luck in it."""
    ids = [f"r{i}" for i in range(8)]
    async with connected(stack.ports[0], "live") as client:
        for id in ids:
            await client.send("invoke", id=id, open=["text"])
            await client.next(id, "accepted")
        for said in ("one ", "two ", "three"):
            for id in ids:
                await client.piece(id, "text", said)
                while not client.told(id, "back").endswith(said):
                    await client.receive()
        assert not any(client.ended(id) for id in ids)
        for id in ids:
            await client.send("input_end", id=id, field="text")
        await client.to_end(*ids)
    expected = live_answer("one two three")
    assert all(client.told(id, field) == expected[field] for id in ids for field in ("back", "echo"))


def raw_sse(text: str) -> list[tuple[str, int, str]]:
    """Event, id and the very data of each server-sent event."""
    found = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if lines:
            found.append((lines["event"], int(lines.get("id", 0)), lines["data"]))
    return found


@pytest.mark.parametrize(
    ("app", "body"),
    [
        ("one", {"text": "same", "pieces": 12, "service_ms": 5}),
        ("one", {"text": "déjà vu \u2028 \U0001f600", "pieces": 1}),
        ("one", {"text": "bad", "fail": "raise"}),
        ("twice", {"text": "same", "pieces": 12, "service_ms": 5}),
    ],
)
async def test_byte_for_byte_what_sse_says(stack: Stack, app: str, body: dict[str, Any]) -> None:
    async with connected(stack.ports[0], app) as client:
        await client.send("invoke", id="i\u00e9", input=body)
        accepted = await client.receive()
        watching = asyncio.create_task(stack.clients[1].get(f"/requests/{accepted['request']}/events"))
        messages: list[str] = []
        while not messages or json.loads(messages[-1])["type"] == "chunk":
            messages.append(str(await client.socket.recv()))
    sse = raw_sse((await watching).text)
    assert len(sse) == len(messages) > 0
    for (event, seq, data), message in zip(sse, messages, strict=True):
        head = {"type": event, "id": "i\u00e9"} | ({"seq": seq} if seq else {})
        assert message == json.dumps(head, ensure_ascii=False, separators=(",", ":"))[:-1] + "," + data[1:]


async def test_fields_that_come_from_one_output_are_all_named(stack: Stack) -> None:
    async with connected(stack.ports[0], "twice") as client:
        await client.send("invoke", id="t", input={"text": "t"})
        await client.to_end("t")
    _, *chunks, end = client.of("t")
    assert {f["field"]: f.get("fields") for f in chunks} == {"text": ["text", "again", "parts.0.text"], "other": None}
    assert set(end["streams"]) == {"text", "again", "other", "parts.0.text"}
    assert end["response"] == {"parts": [{}]}


async def test_bytes_go_as_binary_frames_and_are_what_sse_says(stack: Stack) -> None:
    pieces = [bytes(range(i, i + 100)) for i in range(5)]
    async with connected(stack.ports[0], "live") as client:
        await client.send("invoke", id="b", input={"text": "x"}, open=["sound"])
        for piece in pieces:
            await client.piece("b", "sound", piece)
        await client.send("input_end", id="b", field="sound")
        await client.to_end("b")
    chunks = [f for f in client.of("b") if f["type"] == "chunk" and f["field"] == "sound"]
    assert client.told("b", "sound") == b"".join(pieces)
    assert {f["media_type"] for f in chunks} == {"audio/pcm;rate=24000;channels=1"}
    sse = raw_sse((await stack.clients[1].get(f"/requests/{client.frames[0]['request']}/events")).text)
    told = [(seq, json.loads(data)) for event, seq, data in sse if event == "chunk"]
    assert [seq for seq, d in told if d["field"] == "sound"] == [f["seq"] for f in chunks]
    assert b"".join(base64.b64decode(d["data"]) for _, d in told if d["field"] == "sound") == b"".join(pieces)


async def test_resume_tells_the_rest_anywhere(stack: Stack) -> None:
    async with connected(stack.ports[0], "one") as client:
        await client.send("invoke", id="a", input={"text": "rest", "pieces": 6, "service_ms": 20})
        await client.to_end("a")
    accepted, *whole = client.of("a")
    for port in stack.ports:
        async with connected(port, "one") as other:
            for i, frame in enumerate(whole):
                after = frame.get("seq", 0) if i < len(whole) - 1 else 10**17
                await other.send("resume", id=f"r{i}", request=accepted["request"], after=after)
            await other.to_end(*(f"r{i}" for i in range(len(whole))))
            for i in range(len(whole)):
                again, *rest = other.of(f"r{i}")
                assert again == accepted | {"id": f"r{i}"}
                assert rest == [f | {"id": f"r{i}"} for f in (whole[i + 1 :] or whole[-1:])]


async def test_the_same_key_is_the_same_request(stack: Stack) -> None:
    async with connected(stack.ports[0], "one") as a, connected(stack.ports[1], "one") as b:
        for client in (a, b):
            await client.send(
                "invoke", id="k", input={"text": "key", "pieces": 4, "service_ms": 20}, options={"idempotency_key": "w"}
            )
        await asyncio.gather(a.to_end("k"), b.to_end("k"))
        assert a.of("k") == b.of("k")
        await b.send("invoke", id="o", input={"text": "other"}, options={"idempotency_key": "w"})
        assert (await b.receive())["error"]["field"] == "Idempotency-Key"


async def test_the_example_of_the_docs(stack: Stack) -> None:
    app, client, says = re.findall(r"^```\w+\n(.*?)^```$", (ROOT / "docs" / "websocket.md").read_text(), re.M | re.S)
    for name, code in (("echo_app.py", app), ("client.py", client)):
        (stack.home / name).write_text(code.replace("127.0.0.1:8700", f"127.0.0.1:{stack.ports[0]}"))
    await stack.deploy(stack.home / "echo_app.py")
    argv = (sys.executable, "-W", "error", stack.home / "client.py")
    process = await asyncio.create_subprocess_exec(*argv, stdout=PIPE, stderr=PIPE)
    out, err = await asyncio.wait_for(process.communicate(), 30)
    assert (out.decode(), err.decode()) == (says, "")


# ------------------------------------------------------------ cancelling and leaving


async def test_cancel_ping_and_late_frames(stack: Stack) -> None:
    async with connected(stack.ports[0], "live") as client:
        await client.send("invoke", id="c", open=["text"])
        request = (await client.receive())["request"]
        await client.piece("c", "text", "some text of sixteen or more")
        await client.next("c", "chunk")
        await client.send("ping")
        await client.until(lambda f: f == {"type": "pong"})
        await client.send("cancel", id="c")
        last = await client.next("c", "error")
        assert (last["status"], last["error"]["code"], last["request"]) == ("cancelled", "cancelled", request)
        for type in ("input", "input_end", "cancel"):  # sent before the client could know
            await client.send(type, id="c", **({} if type == "cancel" else {"field": "text"}))
        await client.send("ping")
        assert await client.receive() == {"type": "pong"}
    assert await status(stack, request) == "cancelled"


async def test_who_closes_leaves_after_the_grace(stack: Stack) -> None:
    requests = {}
    async with connected(stack.ports[0], "one") as client:
        for id, grace in (("now", 0), ("later", 30)):
            body = {"text": id, "service_ms": 20_000}
            await client.send("invoke", id=id, input=body, options={"resume_grace": grace})
            requests[id] = (await client.receive())["request"]
    await ends(stack, requests["now"], "cancelled")
    assert await status(stack, requests["later"]) == "running"
    async with connected(stack.ports[1], "one") as client:
        await client.send("resume", id="x", request=requests["later"])
        await client.receive()
        await client.send("cancel", id="x")
        assert (await client.receive())["status"] == "cancelled"


async def test_who_closes_while_a_request_is_accepted_has_left_it(stack: Stack) -> None:
    request = frame_options("one", {"idempotency_key": "hasty"}).request
    async with connected(stack.ports[0], "one") as client:
        body = {"text": "hasty", "service_ms": 20_000}
        await client.send("invoke", id="h", input=body, options={"idempotency_key": "hasty"})
    await eventually(lambda: _is(stack, request, "cancelled"), within=10)


async def _is(stack: Stack, request: str, how: str) -> bool:
    answer = await stack.clients[1].get(f"/requests/{request}")
    return answer.status_code == 200 and bool(answer.json()["status"] == how)


async def test_clients_that_vanish_in_the_middle_are_no_errors(stack: Stack) -> None:
    async def vanish(i: int) -> None:
        rng = random.Random(i)
        async with connected(stack.ports[0], "live") as client:
            await client.send("invoke", id="a", open=["text"], input={"title": f"{i}"})
            for _ in range(rng.randint(0, 20)):
                await client.piece("a", "text", "x" * rng.randint(1, 200))
            if i % 3 == 0:
                await client.send("input_end", id="a", field="text")
            if i % 2 == 0:
                await client.receive()
            client.socket.transport.abort()

    await asyncio.gather(*(vanish(i) for i in range(40)), return_exceptions=True)
    async with connected(stack.ports[0], "one") as client:
        await client.send("invoke", id="a", input={"text": "fine"})
        await client.to_end("a")
    assert client.of("a")[-1]["type"] == "end"
    log = (stack.home / "gateway0.log").read_text()
    assert not re.search("Traceback|never retrieved|is closed|cannot be told|its driver stopped", log), log[-2000:]


# ------------------------------------------------------------ bad frames of one request


BAD: list[tuple[Frame, str, str]] = [
    ({"type": "nothing", "id": "x"}, "bad_frame", ""),
    ({"type": "invoke", "id": "x", "input": {"text": "t"}, "optoins": {}}, "bad_frame", ""),
    ({"type": "invoke", "id": "x", "input": {"text": 7}}, "bad_input", "text"),
    ({"type": "invoke", "id": "x", "input": {}}, "bad_input", "text"),
    ({"type": "invoke", "id": "x", "input": {"text": "t", "more": 1}}, "bad_input", "more"),
    (
        {"type": "invoke", "id": "x", "input": {"text": "t"}, "options": {"deadline": -1}},
        "bad_input",
        "options.deadline",
    ),
    ({"type": "invoke", "id": "x", "input": {"text": "t"}, "options": {"seed": "no"}}, "bad_input", "options.seed"),
    ({"type": "invoke", "id": "x", "input": {"text": "t"}, "options": {"durable": 3}}, "bad_input", "options.durable"),
    ({"type": "invoke", "id": "x", "input": {"text": "t"}, "options": {"sede": 3}}, "bad_input", "options.sede"),
    ({"type": "invoke", "id": "x", "input": {"text": "t"}, "options": {"seed": []}}, "bad_input", "options.seed"),
    ({"type": "invoke", "id": "x", "open": ["text"]}, "bad_input", "text"),
    ({"type": "invoke", "id": "x", "open": ["nothing"]}, "bad_input", "nothing"),
    ({"type": "resume", "id": "x", "request": "0" * 32}, "unknown_request", "request"),
    ({"type": "resume", "id": "x", "request": "../x"}, "bad_input", "request"),
    ({"type": "cancel", "id": "x"}, "bad_input", "id"),
    ({"type": "input", "id": "x", "field": "text", "data": "d"}, "bad_input", "id"),
    ({"type": "input_end", "id": "x", "field": "text"}, "bad_input", "id"),
    ({"type": "invoke", "id": "good", "input": {"text": "t"}}, "bad_input", "id"),
    ({"type": "input", "id": "good", "field": "text", "data": "d"}, "bad_input", "text"),
]


async def test_bad_frames_harm_nothing_else(stack: Stack) -> None:
    async with connected(stack.ports[0], "one") as client:
        await client.send("invoke", id="good", input={"text": "good", "pieces": 3, "service_ms": 700})
        assert (await client.receive())["type"] == "accepted"
        for frame, code, field in BAD:
            async with connected(stack.ports[0], "one") as fresh:
                target = client if frame["id"] == "good" else fresh
                await target.socket.send(json.dumps(frame))
                answer = await target.until(lambda f: f["type"] == "error")
                assert (answer["id"], answer["error"]["code"]) == (frame["id"], code), (frame, answer)
                assert answer["error"].get("field", "") == field, (frame, answer)
                assert "status" not in answer
                assert answer["error"]["message"]
                await target.send("ping")
                await target.until(lambda f: f["type"] == "pong")
        client.frames = [f for f in client.frames if f["type"] != "error"]
        await client.to_end("good")
        assert client.told("good", "text") == one("good", 3)["text"]


async def test_a_request_of_another_app_is_not_told_here(stack: Stack) -> None:
    request = (await stack.clients[0].post("/apps/one", json={"text": "mine"})).json()["request"]
    async with connected(stack.ports[0], "live") as client:
        await client.send("resume", id="x", request=request)
        assert (await client.receive())["error"]["field"] == "request"


async def test_requests_on_one_connection_are_bounded(stack: Stack) -> None:
    async with connected(stack.ports[0], "one") as client:
        for i in range(REQUESTS + 1):
            await client.send("invoke", id=str(i), input={"text": f"{i}", "service_ms": 20_000})
        refused = await client.until(lambda f: f["type"] == "error")
        assert (refused["id"], refused["error"]["code"]) == (str(REQUESTS), "overloaded")
        assert refused["error"]["retryable"]
        assert refused["error"]["retry_after"] > 0


# ------------------------------------------------------------ what closes a connection


async def closing(client: Client, message: str | bytes) -> int:
    with suppress(ConnectionClosed):  # it may be closed before all is sent
        await client.socket.send(message)
    return (await client.closed())[0]


@pytest.mark.parametrize(
    ("message", "code"),
    [("nonsense", 1007), ("[]", 1007), (b"\x00", 1003), (b"raw audio", 1003), (join(b"no json", b""), 1003)],
)
async def test_what_is_no_frame_closes(stack: Stack, message: str | bytes, code: int) -> None:
    async with connected(stack.ports[0], "one") as client:
        assert await closing(client, message) == code


async def test_a_frame_that_is_too_large_closes(stack: Stack) -> None:
    async with connected(stack.ports[0], "one") as client:
        body = json.dumps({"type": "invoke", "id": "a", "input": {"text": "x" * FRAME_LIMIT}})
        assert await closing(client, body) == 1009
    async with connected(stack.ports[0], "one") as client:
        text = "long " * 500_000
        await client.send("invoke", id="a", input={"text": text})
        await client.to_end("a")
        assert client.of("a")[-1]["response"]["digest"] == one(text)["digest"]


@pytest.mark.parametrize(("app", "code"), [("nobody", 4404), ("no.body", 4404)])
async def test_an_unknown_app(stack: Stack, app: str, code: int) -> None:
    async with connected(stack.ports[0], app) as client:
        assert await client.closed() == (code, (await client.closed())[1])
        assert (await client.closed())[1]


async def test_pages_of_other_origins_are_refused(stack: Stack) -> None:
    port = stack.ports[0]
    for origin in ("http://evil.example", "null", f"http://localhost:{port}"):
        async with connected(port, "one", origin=origin) as client:
            assert (await client.closed())[0] == 4403
    async with connected(port, "one", origin=f"http://127.0.0.1:{port}") as client:
        await client.send("ping")
        assert (await client.receive())["type"] == "pong"


async def test_a_bad_text_message_closes(stack: Stack) -> None:
    """Bytes that are no UTF-8 in a text frame: sent by hand, for no library sends them."""
    async with connected(stack.ports[0], "one") as client:
        payload = b"\xff\xfe\xfd"
        frame = struct.pack("!BB4s", 0x81, 0x80 | len(payload), b"\0\0\0\0") + payload
        client.socket.transport.write(frame)
        assert (await client.closed())[0] == 1007


async def test_a_gateway_that_stops_says_so_and_gives_up_nothing(stack: Stack) -> None:
    """1001: at once for who waits for nothing, after a while for the others, who go on elsewhere."""
    stack.add("gateway9", "gateway", "--port", str(port := _port()), "--connections", "3")
    await eventually(lambda: _is_ready(port), within=20)
    async with connected(port, "one") as idle, connected(port, "one") as busy, connected(port, "one") as short:
        async with connected(port, "one") as fourth:
            assert (await fourth.closed())[0] == 4429
        await busy.send("invoke", id="b", input={"text": "busy", "pieces": 12, "service_ms": 600})
        await short.send("invoke", id="s", input={"text": "short", "pieces": 4, "service_ms": 200})
        request = (await busy.receive())["request"]
        await short.next("s", "chunk")
        stack.children["gateway9"].kill(signal.SIGTERM)
        assert (await idle.closed())[0] == 1001
        await short.to_end("s")
        assert short.told("s", "text") == one("short", 4)["text"]
        assert (await short.closed())[0] == 1001
        with pytest.raises(ConnectionClosed):
            await busy.to_end("b")
        assert (await busy.closed())[0] == 1001
    last = max(f.get("seq", 0) for f in busy.frames)
    async with connected(stack.ports[0], "one") as other:
        await other.send("resume", id="b", request=request, after=last)
        await other.to_end("b")
    assert busy.told("b", "text") + other.told("b", "text") == one("busy", 12)["text"]
    assert stack.children["gateway9"].wait(10) is not None


def _port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


async def _is_ready(port: int) -> bool:
    """Asked over HTTP: a WebSocket would count among the connections that it takes until it has gone."""
    try:
        async with httpx.AsyncClient() as client:
            return (await client.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200
    except httpx.TransportError:
        return False


# ------------------------------------------------------------ pressure


async def test_who_does_not_read_costs_no_memory_and_loses_nothing(stack: Stack) -> None:
    """24 MiB are streamed in; one client asks for them while they come and reads when they have ended, another one asks
    after that and reads when a third one has read everything. The sockets' buffers hold a few MiB of them at most.
    """
    count, piece = 384, b"\x01\x02" * (32 << 10)
    sound = piece * count
    async with (
        connected(stack.ports[1], "live") as writer,
        connected(stack.ports[1], "live", **narrow(stack.ports[1])) as early,
    ):
        await writer.send("invoke", id="w", input={"text": "x"}, open=["sound"], options={"resume_grace": 20})
        request = (await writer.receive())["request"]
        await early.send("resume", id="e", request=request, listen=True)
        reading = asyncio.create_task(writer.to_end("w"))
        for _ in range(count):
            await writer.piece("w", "sound", piece)
        await writer.send("input_end", id="w", field="sound")
        await reading
        await early.to_end("e")
    assert writer.told("w", "sound") == early.told("e", "sound") == sound
    gateway = psutil.Process(stack.children["gateway0"].pid)
    async with (
        connected(stack.ports[0], "live", **narrow(stack.ports[0])) as late,
        connected(stack.ports[0], "live") as quick,
    ):
        peak = before = gateway.memory_info().rss
        await late.send("resume", id="l", request=request)
        await quick.send("resume", id="q", request=request)
        while not quick.ended("q"):
            await quick.receive()
            peak = max(peak, gateway.memory_info().rss)
        assert peak - before < 20 << 20, (before, peak)  # two readers with a page of 4 MiB each, as bytes and as frames
        await late.to_end("l")
    assert quick.told("q", "sound") == late.told("l", "sound") == sound
    assert late.of("l")[-1]["type"] == "end"


async def test_input_faster_than_it_is_stored_waits(stack: Stack) -> None:
    """The server is stopped for a while: what the client sends piles up on the client's side."""
    gateway = psutil.Process(stack.children["gateway0"].pid)
    piece = b"0123456789abcdef" * 4096
    async with connected(stack.ports[0], "live", write_limit=1 << 16) as client:
        await client.send("invoke", id="f", input={"text": "x"}, open=["sound"])
        await client.receive()
        before = gateway.memory_info().rss
        nats = psutil.Process(stack.server.pid)
        nats.suspend()
        try:
            sent = await _send_for(2.0, client, "f", piece)
            assert sent < 16 << 20
            assert gateway.memory_info().rss - before < 16 << 20
        finally:
            nats.resume()
        await client.send("input_end", id="f", field="sound")
        await client.to_end("f")
    told = client.told("f", "sound")  # the piece at which it gave up waiting may have been taken or not
    assert told in (piece * (sent // len(piece)), piece * (sent // len(piece) + 1))


async def _send_for(seconds: float, client: Client, id: str, piece: bytes) -> int:
    """Bytes that the connection took within that time."""
    sent = 0
    try:
        async with asyncio.timeout(seconds):
            while True:
                await client.piece(id, "sound", piece)
                sent += len(piece)
    except TimeoutError:
        return sent
