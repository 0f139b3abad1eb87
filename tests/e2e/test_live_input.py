"""Input that arrives while the request runs: consumers start before it ends, and it survives gateways and clients."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
import pytest_asyncio
from websockets.exceptions import ConnectionClosed

from broker.facts import Facts
from broker.subjects import parse_run
from tests.e2e.apps import APPS, live_answer, talk
from tests.gateway.ws import Client, connected
from tests.stack import Stack
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT = "A text that a client says piece by piece, é and \U0001f33d, while it is echoed. " * 8


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    async with Stack(gateways=3) as running:
        for name in ("live", "served_live"):
            await running.deploy(APPS / f"{name}.py")
        yield running


def cut(text: str, seed: int, most: int = 40) -> list[str]:
    rng, pieces = random.Random(seed), []
    while text:
        n = rng.randint(1, most)
        pieces.append(text[:n])
        text = text[n:]
    return pieces


async def say(client: Client, id: str, text: str, seed: int = 0) -> None:
    for piece in cut(text, seed):
        await client.piece(id, "text", piece)
    await client.send("input_end", id=id, field="text")


async def test_the_first_echo_comes_before_the_input_has_ended(stack: Stack) -> None:
    async with connected(stack.ports[0], "live") as client:
        await client.send("invoke", id="a", input={"title": "order"}, open=["text"])
        accepted = await client.receive()
        assert accepted["inputs"] == {"text": {"chunks": 0, "size": 0, "ended": False}}
        await client.piece("a", "text", TEXT[:40])
        first = await client.until(lambda f: f["type"] == "chunk" and f["field"] == "echo")
        await say(client, "a", TEXT[40:])
        await client.to_end("a")
    assert client.told("a", "back") == TEXT
    assert client.told("a", "echo") == live_answer(TEXT, "order")["echo"]
    assert client.of("a")[-1]["response"] == {"sound": "", "words": [], "whole": ""}
    said = [f for f in client.frames if f.get("field") == "back"]
    assert {f["node"] for f in said} == {"input"}
    assert first["seq"] < said[-1]["seq"]
    log = (await Facts(stack.broker).read(accepted["request"])).messages
    assert sum(parse_run(m.subject).kind == "graph" for m in log) == 1  # it is one pass to the echo, and one to its end


@pytest.mark.parametrize("text", ["", "short", "look at this, a long text that is compared"])
async def test_invoke_may_look_at_the_whole(stack: Stack, text: str) -> None:
    async with connected(stack.ports[0], "live") as client:
        await client.send("invoke", id="a", input={"look": True}, open=["text"])
        await say(client, "a", text)
        await client.to_end("a")
    whole = live_answer(text, look=True)
    assert client.of("a")[-1]["response"] == {"sound": "", "words": [], "whole": whole["whole"]}
    assert (client.told("a", "back"), client.told("a", "echo")) == (text, whole["echo"])
    answer = await stack.clients[0].post("/apps/live", json={"text": text, "look": True})
    assert answer.json()["response"] == whole | {"sound": "", "words": []}


async def test_several_fields_and_lists(stack: Stack) -> None:
    async with connected(stack.ports[0], "live") as client:
        await client.send("invoke", id="a", open=["words", "text", "sound"])
        words = [f"word {i}" for i in range(50)]
        for i in range(0, 50, 7):
            await client.send("input", id="a", field="words", data=words[i : i + 7])
            await client.piece("a", "sound", bytes([i, 0]) * 100)
        await client.send("input_end", id="a", field="words")
        await client.send("input_end", id="a", field="words")
        await client.send("input_end", id="a", field="sound")
        await say(client, "a", TEXT)
        await client.to_end("a")
    assert client.told("a", "words") == words
    assert client.told("a", "sound") == b"".join(bytes([i, 0]) * 100 for i in range(0, 50, 7))
    assert client.told("a", "back") == TEXT
    shown = (await stack.clients[1].get(f"/requests/{client.frames[0]['request']}")).json()
    assert shown["status"] == "done"
    assert shown["response"] == {"whole": ""}


@pytest.mark.parametrize(
    ("frame", "field"),
    [
        ({"type": "input", "field": "text", "data": [1]}, "text"),
        ({"type": "input", "field": "words", "data": "w"}, "words"),
        ({"type": "input", "field": "words", "data": [1]}, "words"),
        ({"type": "input", "field": "sound", "data": "AAAA"}, "sound"),
        ({"type": "input", "field": "title", "data": "x"}, "title"),
        ({"type": "input_end", "field": "title"}, "title"),
    ],
)
async def test_a_bad_piece_is_refused_and_the_rest_goes_on(stack: Stack, frame: dict[str, Any], field: str) -> None:
    async with connected(stack.ports[0], "live") as client:
        await client.send("invoke", id="a", open=["text", "words", "sound"])
        await client.receive()
        await client.send(**frame, id="a")
        error = await client.receive()
        assert (error["type"], error["error"]["code"], error["error"]["field"]) == ("error", "bad_input", field)
        assert "status" not in error
        client.frames.clear()
        for name in ("words", "sound"):
            await client.send("input_end", id="a", field=name)
        await say(client, "a", "fine")
        await client.piece("a", "text", "more")
        late = await client.next("a", "error", "end")
        if late["type"] == "error":  # unless the end was faster
            assert late["error"]["field"] == "text"
            client.frames = [f for f in client.frames if f["type"] != "error"]
            await client.to_end("a")
    assert client.told("a", "back") == "fine"


# ------------------------------------------------------------ what dies on the way


async def test_another_gateway_goes_on_with_a_half_sent_input(stack: Stack) -> None:
    """The gateway is killed after half of the input; the client learns how much is stored and says the rest."""
    half = len(TEXT) // 2
    async with connected(stack.ports[2], "live") as client:
        await client.send(
            "invoke", id="a", input={"title": "half"}, open=["text"], options={"resume_grace": 30, "deadline": 60}
        )
        request = (await client.receive())["request"]
        for piece in cut(TEXT[:half], 1):
            await client.piece("a", "text", piece)
        await client.until(lambda f: f["type"] == "chunk" and f["field"] == "echo")
        stack.children["gateway2"].kill()
        with pytest.raises(ConnectionClosed):
            await client.to_end("a")
    seen = max(f.get("seq", 0) for f in client.frames)
    async with connected(stack.ports[1], "live") as other:
        await other.send("resume", id="b", request=request, after=seen)
        accepted = await other.receive()
        stored = accepted["inputs"]["text"]
        assert (accepted["type"], accepted["request"], stored["ended"]) == ("accepted", request, False)
        assert 0 < stored["size"] <= half
        assert stored["chunks"] >= 1
        await say(other, "b", TEXT[stored["size"] :], 2)
        await other.to_end("b")
    for field in ("back", "echo"):
        assert client.told("a", field) + other.told("b", field) == live_answer(TEXT, "half")[field]
    assert other.of("b")[-1]["type"] == "end"


CRASHES = ["gateway.accepted", "gateway.input", "gateway.input_flushed", "gateway.input_ended", "driver.finished"]


@pytest.mark.parametrize("point", [*CRASHES, "gateway.told:3"])
async def test_a_gateway_that_dies_at_each_point(stack: Stack, point: str) -> None:
    """The client knows nothing but its key: it asks again on another gateway, and says what is not stored."""
    key = f"crash {point}"
    ask = {"input": {"title": point}, "open": ["text", "sound"]}
    options = {"idempotency_key": key, "resume_grace": 30, "deadline": 60}
    gateway = stack.children["gateway2"]
    gateway.kill()
    gateway.start(CRASH_AT=point)
    await stack.wait_ready(2)
    with suppress(ConnectionClosed, OSError):
        async with connected(stack.ports[2], "live") as client:
            await client.send("invoke", id="a", options=options, **ask)
            for piece in cut(TEXT, 3):
                await client.piece("a", "text", piece)
                await client.piece("a", "sound", b"\1\2")
            for field in ("text", "sound"):
                await client.send("input_end", id="a", field=field)
            await client.to_end("a")
    await eventually(lambda: not gateway.alive, within=20)
    count = len(cut(TEXT, 3))
    async with connected(stack.ports[0], "live") as other:
        await other.send("invoke", id="b", options=options, **ask)
        accepted = await other.receive()
        assert accepted["type"] == "accepted", accepted
        inputs = accepted["inputs"]
        if inputs and not inputs["text"]["ended"]:
            await other.piece("b", "text", TEXT[inputs["text"]["size"] :])
            await other.piece("b", "sound", (b"\1\2" * count)[inputs["sound"]["size"] :])
            for field in ("text", "sound"):
                await other.send("input_end", id="b", field=field)
        await other.to_end("b")
    assert other.of("b")[-1]["type"] == "end", other.of("b")[-1]
    assert other.told("b", "back") == TEXT
    assert other.told("b", "sound") == b"\1\2" * count
    assert other.told("b", "echo") == live_answer(TEXT, point)["echo"]


async def test_a_second_connection_takes_the_input_over(stack: Stack) -> None:
    async with connected(stack.ports[0], "live") as old, connected(stack.ports[1], "live") as new:
        await old.send("invoke", id="a", open=["text"])
        request = (await old.receive())["request"]
        await old.piece("a", "text", TEXT[:100])
        await old.next("a", "chunk")
        await new.send("resume", id="l", request=request, listen=True)
        assert (await new.receive())["inputs"] == {}
        await new.piece("l", "text", "x")
        assert (await new.next("l", "error"))["error"]["field"] == "text"
        await new.send("resume", id="b", request=request)
        stored = (await new.next("b", "accepted"))["inputs"]["text"]
        assert stored["size"] == 100
        await old.piece("a", "text", "too late")
        await old.send("input_end", id="a", field="text")
        error = await old.next("a", "error")
        assert (error["error"]["code"], "status" in error) == ("taken_over", False)
        await say(new, "b", TEXT[100:])
        await new.to_end("b")
        await old.next("a", "end")
    assert old.told("a", "back") == new.told("b", "back") == TEXT


async def test_a_worker_that_dies_echoes_on(stack: Stack) -> None:
    (component,) = [
        c["id"] for c in (await stack.clients[0].get("/components")).json()["components"] if "live-echo" in c["id"]
    ]
    async with connected(stack.ports[0], "live") as client:
        await client.send("invoke", id="a", input={"service_ms": 5}, open=["text"], options={"deadline": 60})
        await client.piece("a", "text", TEXT[:200])
        await client.until(lambda f: f["type"] == "chunk" and f["field"] == "echo")
        worker = stack.children[f"{component}@0"]
        worker.kill()
        worker.start()
        await say(client, "a", TEXT[200:])
        await client.to_end("a")
    assert client.told("a", "echo") == live_answer(TEXT)["echo"]


async def test_an_input_that_never_ends_is_held_to_the_deadline(stack: Stack) -> None:
    async with connected(stack.ports[0], "live") as client:
        await client.send("invoke", id="a", open=["text"], options={"deadline": 1})
        await client.piece("a", "text", TEXT)
        last = await client.next("a", "error", "end")
    assert (last["status"], last["error"]["code"]) == ("expired", "expired")


# ------------------------------------------------------------ serve


async def test_serve_reads_it_and_passes_it_on(stack: Stack) -> None:
    """Both echoes speak before the input has ended, though `serve` itself waits for its end."""
    async with connected(stack.ports[0], "served_live") as client:
        await client.send("invoke", id="a", open=["text"])
        request = (await client.receive())["request"]
        await client.piece("a", "text", TEXT[:100])

        async def both_speak() -> bool:
            log = (await Facts(stack.broker).read(request)).messages
            return sum(parse_run(m.subject).kind == "first" for m in log) == 3

        await eventually(both_speak, within=10)
        await say(client, "a", TEXT[100:])
        await client.to_end("a")
    end = client.of("a")[-1]
    assert end["type"] == "end", end
    assert end["response"] == {"read": TEXT, "first": talk(TEXT)["first"]}
    assert client.told("a", "text") == talk(TEXT)["text"]
    whole = await stack.clients[0].post("/apps/served_live", json={"text": TEXT})
    assert whole.json()["response"] == {"read": TEXT, **talk(TEXT)}
