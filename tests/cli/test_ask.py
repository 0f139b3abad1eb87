"""Following an answer through cuts, against a server of our own that cuts where we say."""

from __future__ import annotations

import asyncio
import base64
import json
import wave
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cornstalk.cli.ask import Answer, Ask, raise_failure, stream
from cornstalk.cli.errors import TIMED_OUT, UNREACHABLE, CliError
from cornstalk.cli.gateway import Gateway
from cornstalk.cli.invoke import Options, invoke

TEXT = ["The ", "capital ", "is ", "Paris."]
PCM = b"\x01\x00\x02\x00"


@dataclass
class Stub:
    """Answers one connection after the other with what `script` makes of the number of the call."""

    script: Callable[[int], bytes]
    seen: list[dict[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    url: str = ""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:])}
        self.bodies.append(await reader.readexactly(int(headers.get("content-length", 0))))
        self.seen.append({"line": head[0], **headers})
        writer.write(self.script(len(self.seen)))
        await writer.drain()
        writer.close()


@asynccontextmanager
async def served(script: Callable[[int], bytes]) -> AsyncIterator[Stub]:
    stub = Stub(script)
    server = await asyncio.start_server(stub.answer, "127.0.0.1", 0)
    async with server:
        stub.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield stub


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCornstalk-Request: r1\r\nContent-Length: 99999\r\n\r\n"


def chunk(seq: int, name: str, data: str, n: int | None = None, **more: str) -> bytes:
    body = {"field": name, "node": "n", "output": name, "n": seq - 1 if n is None else n, "data": data, **more}
    return f"event: chunk\nid: {seq}\ndata: {json.dumps(body)}\n\n".encode()


def end(**response: Any) -> bytes:
    body = {"request": "r1", "status": "done", "response": response, "streams": {}, "times": {"ended": 1.0}}
    return f"event: end\ndata: {json.dumps(body)}\n\n".encode()


def sound(seq: int) -> bytes:
    return chunk(seq, "speech", n=0, data=base64.b64encode(PCM).decode(), media_type="audio/pcm;rate=24000")


def cut_after_each_chunk(call: int) -> bytes:
    if call <= len(TEXT):
        return HEAD + chunk(call, "text", TEXT[call - 1])
    return HEAD + sound(9) + end(question="Q?")


def refusal(status: int, **error: Any) -> bytes:
    body = json.dumps({"error": error}).encode()
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body


async def test_it_goes_on_after_the_last_event_of_every_cut() -> None:
    async with served(cut_after_each_chunk) as stub, Gateway([stub.url]) as gateway:
        answer = Answer()
        pieces = [p async for _, p in stream(gateway, Ask("app", {"text": "hello"}), answer)]
    assert pieces == [*TEXT, PCM]
    assert answer.response() == {"question": "Q?", "text": "".join(TEXT), "speech": base64.b64encode(PCM).decode()}
    assert [s["line"].split()[:2] for s in stub.seen] == [
        ["POST", "/apps/app"],
        *[["GET", "/requests/r1/events"]] * len(TEXT),
    ]
    assert [s.get("last-event-id") for s in stub.seen] == [None, "1", "2", "3", "4"]
    assert answer.status == "done"


async def test_a_request_that_got_no_answer_is_sent_again_under_the_same_key() -> None:
    async with (
        served(lambda call: b"" if call == 1 else HEAD + end()) as first,
        served(lambda call: b"" if call == 1 else HEAD + end()) as second,
        Gateway([first.url, second.url]) as gateway,
    ):
        ask = Ask("app", {"text": "x"}, [("audio", "a.wav", b"\x00\r\n--\xff")], deadline=20)
        async for _ in stream(gateway, ask, Answer()):
            pass
    posts = first.seen + second.seen
    assert len(posts) == 3
    assert len({p["idempotency-key"] for p in posts}) == 1
    assert len(set(first.bodies + second.bodies)) == 1
    assert b'name="audio"; filename=' in first.bodies[0]
    assert b'name="text"\r\n\r\nx\r\n' in first.bodies[0]
    assert all(19 < float(p["cornstalk-deadline"]) <= 20 for p in posts)


async def test_a_gateway_that_is_just_starting_is_asked_again_on_resume() -> None:
    def script(call: int) -> bytes:
        if call == 2:
            return refusal(503, code="unavailable", message="starting")
        return HEAD + (chunk(1, "text", "a") if call == 1 else chunk(2, "text", "b") + end())

    async with served(script) as stub, Gateway([stub.url]) as gateway:
        answer = Answer()
        assert [p async for _, p in stream(gateway, Ask("app"), answer)] == ["a", "b"]


async def test_refusals_say_what_why_and_what_next() -> None:
    async with (
        served(lambda _: refusal(404, code="unknown_app", message="no app 'x'", field="app")) as stub,
        Gateway([stub.url]) as gateway,
    ):
        with pytest.raises(CliError, match="no app 'x'") as caught:
            async for _ in stream(gateway, Ask("x"), Answer()):
                pass
    assert caught.value.why == "unknown_app, field app"
    assert "cornstalk deploy" in caught.value.next


async def test_nobody_there() -> None:
    async with served(lambda _: b"") as stub:
        url = stub.url
    async with Gateway([url]) as gateway:
        with pytest.raises(CliError, match="cannot reach") as caught:
            async for _ in stream(gateway, Ask("x"), Answer()):
                pass
    assert caught.value.exit_code == UNREACHABLE


@pytest.mark.parametrize(("status", "code"), [("expired", TIMED_OUT), ("failed", 1), ("cancelled", 1)])
def test_how_a_request_that_did_not_end_well_is_told(status: str, code: int) -> None:
    error = {"code": "engine_failed", "message": "no", "component": "llm-x", "node": "mind#0"}
    with pytest.raises(CliError, match=f"request r1 {status}: no") as caught:
        raise_failure(Answer(request="r1", status=status, error=error))
    assert caught.value.exit_code == code
    assert "component llm-x" in caught.value.why
    assert caught.value.next == "cornstalk trace r1"


def options(**changes: Any) -> Options:
    plain: dict[str, Any] = {
        "app": "app",
        "text": None,
        "fields": ("text=hi",),
        "files": (),
        "media": {},
        "save": None,
        "as_json": False,
        "streamed": True,
        "deadline": None,
    }
    return Options(**{**plain, **changes})


async def test_text_is_printed_and_sound_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.wav"
    async with served(cut_after_each_chunk) as stub:
        await invoke(Gateway([stub.url]), options(save=out))
    assert capsys.readouterr().out == f"The capital is Paris.\nquestion: Q?\nspeech: {out}\n"
    with wave.open(str(out)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (24000, 1, 2)
        assert file.readframes(10) == PCM


async def test_json_is_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with served(cut_after_each_chunk) as stub, AsyncExitStack():
        await invoke(Gateway([stub.url]), options(as_json=True))
    result = json.loads(capsys.readouterr().out)
    assert result["request"] == "r1"
    assert result["response"]["text"] == "The capital is Paris."
    assert base64.b64decode(result["response"]["speech"]) == PCM


async def test_a_lone_value_needs_no_name(capsys: pytest.CaptureFixture[str]) -> None:
    async with served(lambda _: HEAD + end(text="hello")) as stub:
        await invoke(Gateway([stub.url]), options())
    assert capsys.readouterr().out == "hello\n"


async def test_text_that_came_before_a_failure_ends_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    failed = b'event: error\ndata: {"request":"r1","status":"failed","error":{"code":"x","message":"broke"}}\n\n'
    async with served(lambda _: HEAD + chunk(1, "text", "half") + failed) as stub:
        with pytest.raises(CliError, match="broke"):
            await invoke(Gateway([stub.url]), options())
    assert capsys.readouterr().out == "half\n"
