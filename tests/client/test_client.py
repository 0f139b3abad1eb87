"""The client on a real stack: answers, streams, models, files, errors, leaving."""

from __future__ import annotations

import asyncio
import io
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from cornstalk import AsyncClient, Client
from cornstalk.client import Chunk, End
from cornstalk.errors import (
    AppError,
    BadInput,
    GatewayError,
    RequestFailed,
    UnknownApp,
    UnknownRequest,
    Unreachable,
    UnsupportedMedia,
)
from cornstalk.types import Stream
from tests.client.conftest import urls_of
from tests.client.media import PNG, WAV
from tests.e2e.apps import APPS, chain, mixed, one
from tests.stack import Stack, free_port
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Question(BaseModel):
    text: str
    pieces: int = 5
    service_ms: float = 0.0


class Reply(BaseModel):
    joined: str
    text: Stream[str]
    echo: Stream[str]


async def test_invoke_is_what_the_gateway_says_in_json(client: AsyncClient, stack: Stack) -> None:
    answer = await client.invoke("chain", {"text": "hello"}, pieces=3, seed=7)
    assert answer.response == chain("hello", pieces=3)
    plain = await stack.clients[0].post("/apps/chain", json={"text": "hello", "pieces": 3})
    assert answer.response == plain.json()["response"]
    assert len(answer.request) == 32
    assert answer.times["accepted"] <= time.time()


async def test_models_on_both_sides(client: AsyncClient) -> None:
    handle = client.app("chain", Question, Reply)
    answer = await handle.invoke(Question(text="typed"))
    assert answer.response == Reply(**chain("typed"))
    by_fields = await handle.invoke(text="typed")
    assert by_fields.response == answer.response
    async with handle.stream(Question(text="typed", pieces=2)) as events:
        assert (await events.answer()).response == Reply(**chain("typed", pieces=2))


async def test_fields_that_come_from_one_output_have_all_its_pieces(client: AsyncClient) -> None:
    async with client.stream("twice", text="t") as stream:
        again = "".join([piece async for piece in stream.text("again")])
    async with client.stream("twice", text="t") as stream:
        response = (await stream.answer()).response
    assert response["again"] == response["text"] == response["parts"][0]["text"] == again != response["other"]


async def test_a_stream_is_chunks_then_its_end(client: AsyncClient) -> None:
    texts: dict[str, str] = {}
    events: list[Chunk | End[Any]] = []
    async with client.stream("chain", text="s", pieces=6, service_ms=10) as stream:
        async for event in stream:
            events.append(event)
            if isinstance(event, Chunk):
                assert isinstance(event.data, str)
                texts[event.field] = texts.get(event.field, "") + event.data
    whole = chain("s", pieces=6)
    assert texts == {"text": whole["text"], "echo": whole["echo"]}
    seqs = [e.seq for e in events if isinstance(e, Chunk)]
    assert seqs == sorted(set(seqs))
    end = events[-1]
    assert isinstance(end, End)
    assert end.response == whole
    assert end.answer.request == stream.request


async def test_the_text_of_a_field_and_then_the_whole_answer(client: AsyncClient) -> None:
    async with client.stream("chain", text="t", pieces=4) as stream:
        text = [piece async for piece in stream.text("text")]
        assert "".join(text) == chain("t", pieces=4)["text"]
        assert (await stream.answer()).response == chain("t", pieces=4)


async def test_a_stream_field_without_a_piece_is_empty(client: AsyncClient) -> None:
    answer = await client.invoke("chain", text="none", pieces=0, response_model=Reply)
    assert (answer.response.text, answer.response.echo) == ("", "")


async def test_files_are_sent_by_any_means(client: AsyncClient, tmp_path: Path) -> None:
    path = tmp_path / "sound.wav"
    path.write_bytes(WAV)
    expected = mixed('é "q" \'\r\n--x', sound=WAV, files=[PNG, WAV], count=3)
    with path.open("rb") as file:
        for sound in (WAV, path, file, io.BytesIO(WAV), memoryview(WAV)):
            answer = await client.invoke(
                "mixed", {"text": 'é "q" \'\r\n--x'}, sound=sound, files=[PNG, path], count=3, deadline=30
            )
            assert answer.response == expected


@pytest.mark.parametrize(
    "plain",
    [
        {"extra": "5"},
        {"extra": "null", "files": []},
        {"extra": None, "files": [PNG]},
        {"extra": {"a": [1, None, "x"]}, "loud": True, "ratio": 0.5},
        {"extra": [], "text": "[1]"},
    ],
)
async def test_a_file_beside_it_changes_no_value(client: AsyncClient, plain: dict[str, Any]) -> None:
    fields = {"text": "t", **plain}
    answer = await client.invoke("mixed", fields, sound=WAV)
    assert answer.response == mixed(sound=WAV, **fields)


async def test_bad_input_names_the_field(client: AsyncClient) -> None:
    with pytest.raises(BadInput) as caught:
        await client.invoke("one", text="x", pieces="many")
    assert caught.value.field == "pieces"
    assert not str(caught.value).startswith("pieces: pieces")
    with pytest.raises(UnsupportedMedia) as wrong:
        await client.invoke("mixed", text="x", sound=PNG)
    assert wrong.value.field == "sound"
    with pytest.raises(BadInput) as passed:
        await client.invoke("one", text="x", deadline=0)
    assert passed.value.field == "Cornstalk-Deadline"
    with pytest.raises(BadInput, match=r"http://HOST:PORT"):
        AsyncClient("localhost:8000")
    with pytest.raises(TypeError, match="binary mode"):
        await client.invoke("mixed", text="x", sound=io.StringIO("x"))


async def test_unknown_things(client: AsyncClient) -> None:
    with pytest.raises(UnknownApp):
        await client.invoke("nobody", text="x")
    with pytest.raises(UnknownApp):
        await client.invoke("no.body", text="x")
    with pytest.raises(UnknownRequest):
        await client.status("0" * 32)
    with pytest.raises(UnknownRequest):
        await client.cancel("0" * 32)


async def test_a_failure_says_which_component(client: AsyncClient) -> None:
    with pytest.raises(RequestFailed, match="asked to fail") as caught:
        await client.invoke("one", text="x", fail="raise")
    assert caught.value.status_word == "failed"
    assert caught.value.error is not None
    assert caught.value.error.code == "asked_to_fail"
    assert caught.value.error.component.startswith("null-value-")
    assert (await client.status(caught.value.request))["status"] == "failed"


async def test_a_deadline_ends_it(client: AsyncClient) -> None:
    with pytest.raises(RequestFailed) as caught:
        await client.invoke("one", text="slow", service_ms=20_000, deadline=0.5)
    assert caught.value.status_word == "expired"


async def test_the_same_key_is_the_same_request(client: AsyncClient) -> None:
    first, second = await asyncio.gather(*(client.invoke("one", text="k", idempotency_key="key") for _ in range(2)))
    assert first == second
    assert (await client.invoke("one", text="k")).request != first.request


async def test_cancel_by_another(client: AsyncClient) -> None:
    stream = client.stream("one", text="c", service_ms=20_000)
    waiting = asyncio.create_task(stream.answer())
    await eventually(lambda: stream.request)
    assert await client.cancel(stream.request) == "cancelling"
    with pytest.raises(RequestFailed, match="cancelled"):
        await waiting
    assert await client.cancel(stream.request) == "cancelled"


async def test_leaving_a_stream_cancels_at_once(client: AsyncClient) -> None:
    async with client.stream("one", text="left", pieces=9, service_ms=200) as stream:
        async for _ in stream.text("text"):
            break
    await eventually(lambda: _has_status(client, stream.request, "cancelled"), within=3)


async def test_a_cancelled_task_cancels_its_request(client: AsyncClient) -> None:
    stream = client.stream("one", text="task", service_ms=20_000)
    waiting = asyncio.create_task(stream.answer())
    await eventually(lambda: stream.request)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await eventually(lambda: _has_status(client, stream.request, "cancelled"), within=3)


async def test_a_durable_request_is_left_alone(client: AsyncClient) -> None:
    async with client.stream("one", text="durable", pieces=3, service_ms=50, durable=True) as stream:
        await anext(stream)
    await eventually(lambda: _has_status(client, stream.request, "done"), within=10)


async def test_an_app_comes_and_goes(client: AsyncClient) -> None:
    deployed = await client.deploy(APPS / "one.py")
    assert deployed["name"] == "one"
    second = (APPS / "one.py").read_text().replace('App("one"', 'App("second"')
    assert (await client.deploy(second))["components"] == deployed["components"]
    found = {app["name"]: app for app in await client.apps()}
    assert found["second"]["request"]["properties"].keys() >= {"text", "pieces"}
    assert await client.remove("second") == {"name": "second", "drains": []}
    with pytest.raises(UnknownApp):
        await client.remove("second")
    with pytest.raises(AppError) as caught:
        await client.deploy("import os\nx = (\n")
    assert caught.value.line > 0


async def test_deploying_needs_the_token(stack: Stack) -> None:
    async with AsyncClient(urls_of(stack)) as stranger:
        with pytest.raises(GatewayError) as caught:
            await stranger.deploy(APPS / "one.py")
        assert (caught.value.http_status, caught.value.error.code) == (401, "unauthorized")


async def test_nobody_there() -> None:
    began = time.monotonic()
    async with AsyncClient(f"http://127.0.0.1:{free_port()}", reach_within=0.3) as lonely:
        with pytest.raises(Unreachable):
            await lonely.invoke("one", text="x")
        with pytest.raises(Unreachable):
            await lonely.apps()
    assert time.monotonic() - began < 3


async def test_a_gateway_that_is_not_there_is_passed_over(stack: Stack) -> None:
    async with AsyncClient([f"http://127.0.0.1:{free_port()}", *urls_of(stack)]) as client:
        assert (await client.invoke("one", text="a")).response == one("a")
        assert len(await client.apps()) == 4


async def test_the_client_for_threads_says_the_same(stack: Stack, client: AsyncClient) -> None:
    def ask() -> list[Any]:
        answers: list[Any] = []
        with Client(urls_of(stack), admin_token=stack.admin) as sync:
            answers.append(sync.invoke("chain", text="sync", seed=1).response)
            handle = sync.app("chain", Question, Reply)
            answers.append(handle.invoke(Question(text="sync")).response)
            with handle.stream(text="sync") as stream:
                answers.append("".join(stream.text("text")))
                answers.append(stream.answer().response)
            answers.append(sync.invoke("mixed", text="f", sound=WAV).response)
            with sync.stream("one", text="left", pieces=9, service_ms=200) as left:
                next(left)
            answers.append(left.request)
            with pytest.raises(UnknownApp):
                sync.invoke("nobody")
            answers.append(sync.apps())
            answers.append(sync.deploy(APPS / "one.py")["name"])
        return answers

    whole = chain("sync")
    for answers in await asyncio.gather(*(asyncio.to_thread(ask) for _ in range(2))):
        said, typed, text, answer, filed, left, apps, name = answers
        assert said == whole
        assert typed == answer == Reply(**whole)
        assert text == whole["text"]
        assert filed == mixed("f", sound=WAV)
        assert {a["name"] for a in apps} == {"one", "chain", "mixed", "twice"}
        assert name == "one"
        await eventually(lambda left=left: _has_status(client, left, "cancelled"), within=3)


async def _has_status(client: AsyncClient, request: str, status: str) -> bool:
    return bool((await client.status(request))["status"] == status)
