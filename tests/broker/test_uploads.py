"""The spool: whole bytes or a typed error."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from broker import subjects
from broker.connection import Broker
from broker.errors import QueueFull, ReadTimeout, UploadGone
from broker.reads import direct_last
from broker.server import Server
from broker.streams import UPLOADS_BYTES
from broker.uploads import Spool
from cornstalk.uploads import PART
from tests.waiting import eventually


def soon(seconds: float = 10.0) -> float:
    return time.time() + seconds


async def messages(broker: Broker, digest: str) -> int:
    info = await broker.api("STREAM.INFO.UPLOADS", {"subjects_filter": subjects.upload_parts(digest)})
    return len(info["state"].get("subjects") or {})


@pytest.mark.parametrize("nbytes", [0, 1, PART, PART + 1, 5 * PART + 17])
async def test_bytes_come_back(shared_broker: Broker, nbytes: int) -> None:
    data = os.urandom(nbytes)
    spool = Spool(shared_broker)
    upload = await spool.put(data, "image/png", ttl=600, deadline=soon())
    assert (upload.nbytes, upload.media_type) == (nbytes, "image/png")
    assert await Spool(shared_broker).get(upload, timeout=5) == data
    assert await messages(shared_broker, upload.digest) == 1 + -(-nbytes // PART)


async def test_equal_bytes_are_stored_once(shared_broker: Broker) -> None:
    data = os.urandom(PART + 1)
    spool = Spool(shared_broker)
    upload = await spool.put(data, "image/png", ttl=600, deadline=soon())
    before = (await shared_broker.api("STREAM.INFO.UPLOADS"))["state"]["last_seq"]
    assert await spool.put(data, "image/png", ttl=300, deadline=soon()) == upload
    assert (await shared_broker.api("STREAM.INFO.UPLOADS"))["state"]["last_seq"] == before
    await spool.put(data, "image/png", ttl=900, deadline=soon())
    assert (await shared_broker.api("STREAM.INFO.UPLOADS"))["state"]["last_seq"] == before + 3
    assert await spool.get(upload, timeout=5) == data


async def test_puts_of_two_gateways_at_once(shared_broker: Broker) -> None:
    """The longer life wins, for every part, however they interleave."""
    data = os.urandom(3 * PART)
    spools = [Spool(shared_broker) for _ in range(4)]
    uploads = await asyncio.gather(
        *(spool.put(data, "a/b", ttl=ttl, deadline=soon()) for spool, ttl in zip(spools, (1, 600, 1, 2), strict=True))
    )
    assert len(set(uploads)) == 1
    assert await spools[0].get(uploads[0], timeout=5) == data
    for part in range(4):
        subject = subjects.upload(uploads[0].digest, part)
        stored = await direct_last(shared_broker, "UPLOADS", subject, timeout=5)
        assert stored is not None
        assert int(stored.headers["Nats-TTL"].removesuffix("s")) >= 600


async def test_expired_upload_is_gone(shared_broker: Broker) -> None:
    spool = Spool(shared_broker)
    upload = await spool.put(os.urandom(9), "a/b", ttl=1, deadline=soon())
    await eventually(lambda: _is_gone(spool, upload), within=4)


async def _is_gone(spool: Spool, upload: object) -> bool:
    try:
        await spool.get(upload, timeout=2)  # type: ignore[arg-type]
    except UploadGone:
        return True
    return False


async def test_missing_and_changed_parts_are_found(shared_broker: Broker) -> None:
    spool = Spool(shared_broker)
    upload = await spool.put(os.urandom(3 * PART), "a/b", ttl=600, deadline=soon())
    await shared_broker.publish_stored(subjects.upload(upload.digest, 2), os.urandom(PART), deadline=soon())
    with pytest.raises(UploadGone, match="not those"):
        await spool.get(upload, timeout=5)
    await shared_broker.api("STREAM.PURGE.UPLOADS", {"filter": subjects.upload(upload.digest, 2)})
    with pytest.raises(UploadGone, match="a part"):
        await spool.get(upload, timeout=5)
    with pytest.raises(UploadGone):
        await spool.get(upload.replace(digest="0" * 64), timeout=5)


async def _parts(broker: Broker) -> int:
    stored: int = (await broker.api("STREAM.INFO.UPLOADS"))["state"]["messages"]
    return stored


async def test_reads_and_writes_go_on_after_a_restart(broker: Broker, nats_server: Server) -> None:
    spool = Spool(broker)
    data = os.urandom(16 * PART)
    putting = asyncio.create_task(spool.put(data, "a/b", ttl=600, deadline=soon(20)))
    await eventually(lambda: _parts(broker), every=0.001)
    nats_server.kill()
    nats_server.start()
    upload = await putting
    nats_server.kill()
    nats_server.start()
    assert await spool.get(upload, timeout=5) == data
    nats_server.kill()
    with pytest.raises(ReadTimeout):
        await spool.get(upload, timeout=0.3)


async def test_full_spool(broker: Broker) -> None:
    config = (await broker.api("STREAM.INFO.UPLOADS"))["config"]
    assert config["max_bytes"] == UPLOADS_BYTES
    await broker.api("STREAM.UPDATE.UPLOADS", {**config, "max_bytes": 2 * PART})
    with pytest.raises(QueueFull):
        await Spool(broker).put(os.urandom(4 * PART), "a/b", ttl=600, deadline=soon())
