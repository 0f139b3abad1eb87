"""Uploads: the same bytes however they come, told by their content, spooled once, read by any worker."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from broker.subjects import UPLOADS
from tests.e2e.apps import mixed
from tests.gateway.sound import data_url, wav
from tests.stack import Stack
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def spooled(stack: Stack) -> int:
    """Messages in the spool."""
    count: int = (await stack.broker.api(f"STREAM.INFO.{UPLOADS}"))["state"]["messages"]
    return count


async def test_multipart_and_data_url_are_the_same_and_stored_once(stack: Stack) -> None:
    sound, client = wav(40.0), stack.clients[0]
    before = await spooled(stack)
    form = await client.post("/apps/mixed", data={"text": "u"}, files={"sound": ("a.wav", sound)})
    assert form.json()["response"] == mixed("u", sound)
    once = await spooled(stack)
    assert once - before == 1 + -(-len(sound) // (512 << 10))
    answers = await asyncio.gather(
        client.post("/apps/mixed", json={"text": "u", "sound": data_url(sound)}),
        client.post("/apps/mixed", json={"text": "u", "sound": data_url(sound, "text/plain")}),
        client.post("/apps/mixed", data={"text": "u", "sound": data_url(sound)}, files={"files": ("x", b"x")}),
        client.post("/apps/mixed", data={"text": "u"}, files={"sound": ("lie.txt", sound, "text/plain")}),
    )
    assert [a.json()["response"]["digest"] for a in answers] == [mixed("u", sound)["digest"]] * 4
    assert await spooled(stack) == once + 2  # the one byte


async def test_a_list_of_uploads_in_order(stack: Stack) -> None:
    files = [wav() for i in range(3)] + [b"plain text", bytes(1000), b"x"]
    expected = mixed("l", files=files)
    form = await stack.clients[0].post(
        "/apps/mixed", data={"text": "l"}, files=[("files", (f"{i}", data)) for i, data in enumerate(files)]
    )
    assert form.json()["response"] == expected
    assert len(set(expected["files"])) == len(files)
    urls = [data_url(data) for data in files]
    text = await stack.clients[0].post("/apps/mixed", json={"text": "l", "files": urls})
    assert text.json()["response"] == expected
    one = await stack.clients[0].post("/apps/mixed", data={"text": "l"}, files={"files": ("only", files[0])})
    assert one.json()["response"] == mixed("l", files=files[:1])


async def test_plain_fields_of_a_form_have_the_types_of_the_model(stack: Stack) -> None:
    sound = wav()
    fields = {"text": "123", "count": "7", "ratio": "0.5", "loud": "true", "extra": '{"a": [1, "2"]}'}
    form = await stack.clients[0].post("/apps/mixed", data=fields, files={"sound": ("s", sound)})
    assert form.json()["response"] == mixed("123", sound, count=7, ratio=0.5, loud=True, extra={"a": [1, "2"]})


async def test_parts_that_say_they_are_json_are(stack: Stack) -> None:
    """A form can say all that JSON can: null, an empty list, text that looks like a number, uploads that are there."""
    sound, client, json = wav(), stack.clients[0], "application/json; charset=utf-8"
    digest = (await client.post("/uploads", content=sound)).json()["digest"]
    named = f'{{"upload": "{digest}"}}'
    parts = {"text": '"5"', "count": "7", "extra": "null", "files": "[]"}
    form = await client.post(
        "/apps/mixed", files={n: (None, v, json) for n, v in parts.items()} | {"sound": ("s", sound)}
    )
    assert form.json()["response"] == mixed("5", sound, count=7)
    files = [("files", (None, named, json)), ("files", ("f", b"x")), ("files", (None, named, json))]
    several = await client.post("/apps/mixed", files=[("text", (None, "5")), ("sound", (None, named, json)), *files])
    assert several.json()["response"] == mixed("5", sound, files=[sound, b"x", sound])


async def test_an_upload_of_the_largest_size(stack: Stack) -> None:
    """Above it is refused (test_bad_input.py); this one is read whole by a worker."""
    sound = wav(1.0)
    sound += bytes((64 << 20) - len(sound))
    answer = await stack.clients[0].post("/apps/mixed", data={"text": "big"}, files={"sound": ("s", sound)})
    assert answer.json()["response"] == mixed("big", sound)


async def test_a_request_with_uploads_survives_its_worker_and_its_gateway(stack: Stack) -> None:
    sound = wav(5.0)
    expected = mixed("survives", sound)
    headers = {"Idempotency-Key": "survives", "Cornstalk-Resume-Grace": "60"}
    body = {"text": "survives", "sound": data_url(sound), "service_ms": 3000}
    asked = asyncio.create_task(stack.clients[0].post("/apps/mixed", json=body, headers=headers))

    async def running() -> list[int]:
        components = (await stack.clients[0].get("/components")).json()["components"]
        return [w["pid"] for c in components for w in c["workers"] if w["running"]]

    (pid,) = await eventually(running, within=10)
    stack.children["gateway0"].kill()
    victim = next(child for child in stack.children.values() if child.pid == pid)
    victim.kill()
    with pytest.raises(httpx.TransportError):
        await asked
    for child in (victim, stack.children["gateway0"]):
        child.wait(10)
        child.start()
    await stack.wait_ready()
    again = await stack.clients[0].post("/apps/mixed", json=body, headers=headers)
    assert again.json()["response"] == expected
