"""Uploads apart from requests: in parts, through any gateway, cut anywhere, named by their digest."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from broker import subjects
from cornstalk.uploads import PART
from tests.e2e.apps import APPS, mixed
from tests.gateway.test_uploads import wav
from tests.stack import Stack
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    async with Stack(gateways=2) as running:
        await running.deploy(APPS / "mixed.py")
        yield running


def digest_of(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=32).hexdigest()


async def put(client: httpx.AsyncClient, data: bytes, start: int, stop: int, digest: str = "") -> httpx.Response:
    """Sends data[start:stop]."""
    headers = {"Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"}
    return await client.put(f"/uploads/{digest or digest_of(data)}", content=data[start:stop], headers=headers)


async def offset(client: httpx.AsyncClient, data: bytes) -> int:
    """Bytes that are there."""
    answer = await client.head(f"/uploads/{digest_of(data)}")
    assert answer.content == b""
    return 0 if answer.status_code == 404 else int(answer.headers["upload-offset"])


async def heard(stack: Stack, sound: bytes) -> dict[str, Any]:
    """The response to a request that names the upload."""
    answer = await stack.clients[0].post("/apps/mixed", json={"text": "r", "sound": {"upload": digest_of(sound)}})
    assert answer.status_code == 200, answer.text
    response: dict[str, Any] = answer.json()["response"]
    return response


async def under_way(stack: Stack, data: bytes) -> int:
    """Parts that wait."""
    filter_ = {"subjects_filter": subjects.parts_under_way(digest_of(data))}
    return len((await stack.broker.api("STREAM.INFO.UPLOADS", filter_))["state"].get("subjects") or {})


def refused(answer: httpx.Response, status: int, code: str, *said: str) -> None:
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, code), answer.text
    assert all(text in error["message"] for text in said), error["message"]


async def test_one_whole_file_then_a_request_that_names_it(stack: Stack) -> None:
    sound = wav(20.0)
    answer = await stack.clients[0].post("/uploads", content=sound)
    assert answer.status_code == 201
    assert answer.json() == {
        "digest": digest_of(sound),
        "nbytes": len(sound),
        "media_type": "audio/wav",
        "kept_s": 3600.0,
    }
    assert answer.headers["upload-complete"] == "?1"
    assert await heard(stack, sound) == mixed("r", sound)
    again = await stack.clients[1].put(f"/uploads/{digest_of(sound)}", content=sound)
    assert (again.status_code, again.json()) == (200, answer.json())


@pytest.mark.parametrize("nbytes", [1, PART - 1, PART, PART + 1, 3 * PART, 3 * PART + 5])
async def test_every_size_in_one_piece(stack: Stack, nbytes: int) -> None:
    data = os.urandom(nbytes)
    answer = await put(stack.clients[0], data, 0, nbytes)
    assert (answer.status_code, answer.json()["nbytes"]) == (201, nbytes)
    assert await offset(stack.clients[1], data) == nbytes
    assert await under_way(stack, data) == 0
    named = {"text": "f", "files": [{"upload": digest_of(data)}]}
    assert (await stack.clients[0].post("/apps/mixed", json=named)).json()["response"] == mixed("f", files=[data])


async def test_in_pieces_through_either_gateway(stack: Stack) -> None:
    sound = wav(80.0)  # 2.4 MiB
    one, two = stack.clients
    assert await offset(one, sound) == 0
    first = await put(one, sound, 0, PART + 1000)  # the thousand are not kept
    assert (first.status_code, first.json()) == (202, {"digest": digest_of(sound), "nbytes": PART})
    assert (first.headers["upload-offset"], first.headers["upload-complete"]) == (str(PART), "?0")
    assert await offset(two, sound) == PART
    assert (await put(two, sound, PART, 3 * PART)).json()["nbytes"] == 3 * PART
    assert (await put(one, sound, 0, PART)).json()["nbytes"] == 3 * PART  # again does no harm
    last = await put(one, sound, 3 * PART, len(sound))
    assert (last.status_code, last.json()["nbytes"]) == (201, len(sound))
    assert await under_way(stack, sound) == 0
    assert await heard(stack, sound) == mixed("r", sound)


async def test_a_cut_in_the_middle_of_a_body_loses_less_than_a_part(stack: Stack) -> None:
    sound = wav(80.0)
    cut = 2 * PART + 4321
    _, writer = await asyncio.open_connection("127.0.0.1", stack.ports[0])
    head = f"PUT /uploads/{digest_of(sound)} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(sound)}\r\n"
    writer.write(f"{head}Content-Range: bytes 0-{len(sound) - 1}/{len(sound)}\r\n\r\n".encode() + sound[:cut])
    await writer.drain()

    async def two_are_there() -> bool:
        return await offset(stack.clients[0], sound) == 2 * PART

    await eventually(two_are_there, within=10)
    writer.transport.abort()
    there = await offset(stack.clients[1], sound)
    assert there == 2 * PART
    assert (await put(stack.clients[1], sound, there, len(sound))).status_code == 201
    assert await heard(stack, sound) == mixed("r", sound)


async def test_a_gateway_that_dies_loses_no_part(stack: Stack) -> None:
    sound = wav(50.0)
    assert (await put(stack.clients[0], sound, 0, 2 * PART)).status_code == 202
    stack.children["gateway0"].kill()
    stack.children["gateway0"].start()
    await stack.wait_ready()
    assert await offset(stack.clients[0], sound) == 2 * PART
    assert (await put(stack.clients[0], sound, 2 * PART, len(sound))).status_code == 201


async def test_bytes_that_are_not_those_of_the_digest(stack: Stack) -> None:
    sound, other = wav(40.0), wav(40.0)
    client = stack.clients[0]
    for answer in (
        await put(client, other, 0, len(other), digest_of(sound)),
        await client.put(f"/uploads/{digest_of(sound)}", content=other),
    ):
        refused(answer, 422, "digest_mismatch", digest_of(sound), digest_of(other))
        assert (await under_way(stack, sound), await offset(client, sound)) == (0, 0)
    assert (await put(client, sound, 0, len(sound))).status_code == 201
    assert (await put(client, other, 0, PART, digest_of(sound))).status_code == 200  # it is there already
    assert await heard(stack, sound) == mixed("r", sound)


async def test_no_holes(stack: Stack) -> None:
    data = os.urandom(5 * PART)
    client = stack.clients[0]
    refused(await put(client, data, PART, 3 * PART), 416, "wrong_offset", "from 0 on", f"got {PART}")
    await put(client, data, 0, 2 * PART)
    refused(await put(client, data, 3 * PART, 5 * PART), 416, "wrong_offset", f"from {2 * PART} on")
    refused(await put(client, data, 5, 2 * PART), 416, "wrong_offset", f"multiple of {PART}")


async def test_a_body_that_is_not_as_long_as_it_says(stack: Stack) -> None:
    data = os.urandom(3 * PART)
    client = stack.clients[0]
    for body, got in ((data[: PART + 7], str(PART + 7)), (data + b"x", "got more")):
        headers = {"Content-Range": f"bytes 0-{len(data) - 1}/{len(data)}"}
        answer = await client.put(f"/uploads/{digest_of(data)}", content=body, headers=headers)
        refused(answer, 400, "malformed_body", str(len(data)), got)
    assert (await put(client, data, 0, len(data))).status_code == 201


@pytest.mark.parametrize(
    ("range_", "status", "code", "said"),
    [
        ("bytes 0-9", 422, "bad_input", "bytes first-last/total"),
        ("bytes */10", 422, "bad_input", "bytes first-last/total"),
        ("bytes -5-9/10", 422, "bad_input", "bytes first-last/total"),
        ("bytes 9-5/10", 422, "bad_input", "first <= last < total"),
        ("bytes 0-10/10", 422, "bad_input", "first <= last < total"),
        ("bytes 0-99/1000000", 422, "bad_input", f"at least {PART} bytes unless they are the last"),
        (f"bytes 0-{64 << 20}/{(64 << 20) + 1}", 413, "too_large", "67108864"),
        ("bytes 0-9/" + "9" * 400, 422, "bad_input", "bytes first-last/total"),
    ],
)
async def test_a_range_that_cannot_be(stack: Stack, range_: str, status: int, code: str, said: str) -> None:
    headers = {"Content-Range": range_}
    refused(await stack.clients[0].put("/uploads/" + "a" * 64, content=bytes(10), headers=headers), status, code, said)


async def test_what_is_no_digest_and_what_is_not_there(stack: Stack) -> None:
    client = stack.clients[0]
    for digest in ("x", "A" * 64, "a" * 63, "a" * 65, "*", ">", "a" * 62 + "%2e*"):
        refused(await client.put(f"/uploads/{digest}", content=b"x"), 422, "bad_input", "64 hex digits")
        assert (await client.head(f"/uploads/{digest}")).status_code == 422
    assert (await client.head("/uploads/" + "b" * 64)).status_code == 404
    refused(await client.post("/uploads", content=b""), 422, "bad_input", "0 bytes")
    refused(await client.post("/uploads", content=bytes((64 << 20) + 1)), 413, "too_large", "67108864")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"upload": "c" * 64}, "never ended, or has expired"),
        ({"upload": "no digest"}, "got 'no digest'"),
        ({"upload": 5}, 'or {"upload": digest}, got dict'),
        ({"upload": "c" * 64, "more": 1}, "got dict"),
    ],
)
async def test_a_request_that_names_what_is_not_there(stack: Stack, value: Any, said: str) -> None:
    answer = await stack.clients[0].post("/apps/mixed", json={"text": "x", "sound": value})
    refused(answer, 422, "bad_input", said)
    assert answer.json()["error"]["field"] == "sound"


async def test_what_is_named_must_be_of_the_kind_of_the_field(stack: Stack) -> None:
    text = b"I am a text, that nobody can hear.\n"
    await stack.clients[0].post("/uploads", content=text)
    answer = await stack.clients[0].post("/apps/mixed", json={"text": "x", "sound": {"upload": digest_of(text)}})
    refused(answer, 415, "unsupported_media", "expected audio", "got text/plain")


async def test_bare_base64_is_as_a_data_url(stack: Stack) -> None:
    sound = wav(0.1)
    body = {"text": "b", "sound": base64.b64encode(sound).decode()}
    assert (await stack.clients[0].post("/apps/mixed", json=body)).json()["response"] == mixed("b", sound)
