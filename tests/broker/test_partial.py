"""Parts of an upload under way."""

from __future__ import annotations

import os
import time
import uuid

import pytest

from broker import partial, subjects
from broker.connection import Broker
from broker.errors import UploadGone
from broker.partial import Partial
from broker.uploads import Spool, digest_of
from cornstalk.uploads import PART
from tests.waiting import eventually


def soon(seconds: float = 10.0) -> float:
    return time.time() + seconds


async def purge(broker: Broker, subject: str) -> None:
    await broker.api("STREAM.PURGE.UPLOADS", {"filter": subject})


async def test_parts_wait_in_any_order_and_come_back_in_theirs(shared_broker: Broker) -> None:
    data, digest = os.urandom(3 * PART), uuid.uuid4().hex
    parts, other = Partial(shared_broker), Partial(shared_broker)
    assert await parts.there(digest) == 0
    for number, there in ((1, 0), (0, 2), (0, 2), (2, 3)):
        await parts.put(digest, number * PART, data[number * PART :][:PART], deadline=soon())
        assert await other.there(digest) == there * PART
    assert await other.get(digest, 3 * PART, timeout=5) == data
    assert await other.get(digest, PART, timeout=5) == data[:PART]
    assert await other.get(digest, 0, timeout=5) == b""
    await other.drop(digest)
    assert await parts.there(digest) == 0
    with pytest.raises(UploadGone):
        await parts.get(digest, PART, timeout=5)


async def test_a_hole_ends_what_is_there(shared_broker: Broker) -> None:
    parts, digest = Partial(shared_broker), uuid.uuid4().hex
    for number in range(3):
        await parts.put(digest, number * PART, os.urandom(PART), deadline=soon())
    await purge(shared_broker, subjects.upload_under_way(digest, 2))
    assert await parts.there(digest) == PART
    with pytest.raises(UploadGone, match="has expired"):
        await parts.get(digest, 3 * PART, timeout=5)


async def test_parts_expire(shared_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial, "PARTS_TTL", 1.0)
    parts, digest = Partial(shared_broker), uuid.uuid4().hex
    await parts.put(digest, 0, os.urandom(PART), deadline=soon())
    assert await parts.there(digest) == PART

    async def gone() -> bool:
        return await parts.there(digest) == 0

    await eventually(gone, within=5)


@pytest.mark.parametrize(("start", "nbytes"), [(1, PART), (PART, PART - 1), (0, 0)])
async def test_only_whole_parts(shared_broker: Broker, start: int, nbytes: int) -> None:
    with pytest.raises(ValueError, match="no part"):
        await Partial(shared_broker).put("d", start, bytes(nbytes), deadline=soon())


async def test_parts_with_a_false_digest_do_not_touch_the_upload(shared_broker: Broker) -> None:
    data = os.urandom(2 * PART)
    spool, parts = Spool(shared_broker), Partial(shared_broker)
    assert await spool.find(await digest_of(data), deadline=soon()) is None
    upload = await spool.put(data, "a/b", ttl=600, deadline=soon())
    assert await spool.find(upload.digest, deadline=soon()) == upload
    await parts.put(upload.digest, 0, os.urandom(PART), deadline=soon())
    assert await spool.get(upload, timeout=5) == data
    await parts.drop(upload.digest)
    assert await spool.get(upload, timeout=5) == data
