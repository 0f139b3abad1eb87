"""Large files go apart from their requests: what is there is not sent again, after a cut or by another client."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from cornstalk import AsyncClient, Client, Upload
from cornstalk.client.ask import LARGE
from cornstalk.client.conversation import Send
from cornstalk.client.uploading import Uploading
from cornstalk.client.urls import Urls
from cornstalk.errors import GatewayError, Refused, TimedOut, Unreachable
from cornstalk.media import AudioUpload
from cornstalk.uploads import PART, blake2b_256
from tests.client.media import wav
from tests.client.proxy import CuttingProxy
from tests.e2e.apps import mixed
from tests.stack import Stack

URLS = Urls(["http://a", "http://b"])


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Gateway:
    """What gateways do with parts, as gateway/resumable.py has it."""

    def __init__(self) -> None:
        self.parts = b""
        self.complete = b""
        self.taken = 0

    def answer(self, send: Send, cut: int | None) -> tuple[int, dict[str, str], bytes]:
        """To what arrives of it: `cut` bytes at most."""
        if send.method == "HEAD":
            there = len(self.complete or self.parts)
            return (200, {"upload-offset": str(there)}, b"") if there else (404, {}, b"")
        body = send.content if cut is None else send.content[:cut]
        if not self.complete:
            start, last, total = map(int, re.findall(r"\d+", send.headers["Content-Range"]))
            if start > len(self.parts) or start % PART:
                return 416, {}, b"{}"
            self.taken += len(body)
            self.parts = self.parts[:start] + body[: min(len(body), last - start) // PART * PART]
            if len(body) < last + 1 - start:
                raise ConnectionError
            assert (start + len(body), last + 1) == (total, total)
            self.complete = self.parts[:start] + body
        stored = {"digest": blake2b_256(self.complete), "nbytes": len(self.complete), "media_type": "x/y"}
        return 201, {}, json.dumps(stored).encode()


def sending(content: bytes, clock: Clock, within: float = 60.0, retry_refused: bool = False) -> Uploading:
    return Uploading(content, URLS, 5.0, within, retry_refused, clock)


@given(st.integers(1, 6 * PART), st.lists(st.integers(0, 3 * PART), max_size=6), st.booleans())
def test_cut_at_any_byte_less_than_a_part_is_sent_twice(nbytes: int, cuts: list[int], begun: bool) -> None:
    content = random.Random(nbytes).randbytes(nbytes)
    gateway = Gateway()
    if begun:  # by somebody else
        gateway.parts = content[: nbytes // 2 // PART * PART]
    there = len(gateway.parts)
    up = sending(content, Clock())
    cut = iter([*cuts, *itertools.repeat(None, 20)])
    while up.upload is None:
        try:
            up.answered(*gateway.answer(send := up.send(), next(cut) if send.method == "PUT" else None))
        except ConnectionError:
            up.cut("cut")
    assert gateway.complete == content
    assert up.upload == Upload(blake2b_256(content), nbytes, "x/y")
    assert gateway.taken <= nbytes - there + len(cuts) * PART


def test_what_is_there_costs_its_last_part() -> None:
    gateway, content = Gateway(), bytes(3 * PART + 5)
    gateway.complete = content
    up = sending(content, Clock())
    up.answered(*gateway.answer(up.send(), None))
    assert len(up.send().content) == 5
    up.answered(*gateway.answer(up.send(), None))
    assert up.upload is not None


def test_parts_that_expired_are_sent_again() -> None:
    gateway, content = Gateway(), bytes(3 * PART)
    gateway.parts = content[:PART]
    up = sending(content, Clock())
    up.answered(*gateway.answer(up.send(), None))
    gateway.parts = b""
    assert up.answered(*gateway.answer(up.send(), None)) > 0
    for _ in range(2):
        up.answered(*gateway.answer(up.send(), None))
    assert gateway.complete == content


def test_who_takes_no_byte_is_given_up() -> None:
    clock = Clock()
    up = sending(bytes(LARGE), clock)
    while clock.now < 105:
        clock.now += up.cut("away") + 1
    with pytest.raises(Unreachable, match="http://a, http://b: away"):
        up.cut("away")


def test_who_takes_bytes_is_not() -> None:
    """However slow, and however often it is cut."""
    clock, gateway, content = Clock(), Gateway(), bytes(40 * PART)
    up = sending(content, clock, within=1000)
    while len(gateway.parts) < 39 * PART:
        up.answered(*gateway.answer(up.send(), None))
        clock.now += 20
        with pytest.raises(ConnectionError):
            gateway.answer(up.send(), PART + 7)
        up.cut("cut")
    up = sending(content, clock, within=1.0)
    clock.now += 2
    with pytest.raises(TimedOut, match="1 s"):
        up.cut("cut")


def test_a_full_system() -> None:
    full = (429, {"retry-after": "7"}, b'{"error": {"code": "overloaded", "message": "full"}}')
    up = sending(bytes(LARGE), Clock())
    assert up.answered(*full) < 1  # the other one may take it
    with pytest.raises(Refused):
        up.answered(*full)
    patient = sending(bytes(LARGE), Clock(), retry_refused=True)
    patient.answered(*full)
    assert patient.answered(*full) == 7
    with pytest.raises(GatewayError):
        patient.answered(422, {}, b'{"error": {"code": "digest_mismatch", "message": "no"}}')


# ------------------------------------------------------------ on a real stack


class Sent(BaseModel):
    text: str
    sound: AudioUpload | None = None
    files: list[Upload] = []


def sound_of(nbytes: int, seed: int) -> bytes:
    return wav(random.Random(seed).randbytes(nbytes))


async def put_bytes(stack: Stack, content: bytes) -> int:
    answer = await stack.clients[0].head(f"/uploads/{blake2b_256(content)}")
    return int(answer.headers.get("upload-offset", 0))


@pytest.mark.asyncio(loop_scope="session")
async def test_a_large_file_goes_on_after_cuts(stack: Stack) -> None:
    """Each connection is cut after two parts or so; the first gateway is cut before the second one goes on."""
    sound = sound_of(12 * PART, 1)
    cuts = itertools.chain([2 * PART + 999] * 2, itertools.repeat(None))
    more = itertools.chain([3 * PART + 999] * 2, itertools.repeat(None))
    never = itertools.repeat(None)
    async with (
        CuttingProxy(stack.ports[0], never, cuts) as first,
        CuttingProxy(stack.ports[1], never, more) as second,
        AsyncClient([first.url, second.url]) as client,
    ):
        answer = await client.invoke("mixed", text="l", sound=sound, files=[b"small", sound], extra=None)
        assert first.resets + second.resets >= 3
    assert answer.response == mixed("l", sound=sound, files=[b"small", sound])
    assert await put_bytes(stack, sound) == len(sound)


@pytest.mark.asyncio(loop_scope="session")
async def test_an_upload_is_a_field_of_any_model(stack: Stack, client: AsyncClient, tmp_path: Path) -> None:
    sound, small = sound_of(LARGE, 2), sound_of(100, 3)
    path = tmp_path / "sound.wav"
    path.write_bytes(sound)
    large, little = await client.upload(path), await client.upload(small)
    assert (large.digest, large.nbytes, large.media_type) == (blake2b_256(sound), len(sound), "audio/wav")
    app = client.app("mixed", Sent)
    for _ in range(2):
        answer = await app.invoke(Sent(text="m", sound=large, files=[large, little]))
        assert answer.response == mixed("m", sound=sound, files=[sound, small])
    beside = await app.invoke(Sent(text="m", files=[little]), sound=b"RIFF" + small[4:])
    assert beside.response == mixed("m", sound=small, files=[small])


@pytest.mark.asyncio(loop_scope="session")
async def test_the_client_for_threads_sends_large_files_too(stack: Stack) -> None:
    sound = sound_of(LARGE + PART, 4)

    def ask(url: str) -> tuple[object, object]:
        with Client(url) as client:
            whole = client.invoke("mixed", text="t", sound=sound).response
            return whole, client.invoke("mixed", text="t", sound=client.upload(sound)).response

    cuts = itertools.chain([4 * PART], itertools.repeat(None))
    async with CuttingProxy(stack.ports[0], itertools.repeat(None), cuts) as proxy:
        assert await asyncio.to_thread(ask, proxy.url) == (mixed("t", sound=sound),) * 2
        assert proxy.resets == 1


@pytest.mark.asyncio(loop_scope="session")
async def test_a_large_file_takes_of_the_deadline(stack: Stack) -> None:
    never: itertools.repeat[int | None] = itertools.repeat(None)
    async with CuttingProxy(stack.ports[0], never, itertools.repeat(1000)) as proxy, AsyncClient(proxy.url) as client:
        with pytest.raises((TimedOut, Unreachable), match=r"a file"):
            await client.invoke("mixed", text="x", sound=sound_of(LARGE, 5), deadline=0.5)
