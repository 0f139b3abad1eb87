"""The spool of uploaded bytes: content-addressed, in parts, checked when read. The root of lineage."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from typing import Final

import msgspec

from broker import subjects
from broker.connection import Broker
from broker.errors import Conflict, UploadGone
from broker.reads import Stored, direct_last, last_stored_until
from broker.subjects import EXPECTED_LAST_SUBJECT_SEQUENCE, UPLOADS
from cornstalk.messages import Upload
from cornstalk.uploads import PART, blake2b_256

PARTS_AT_ONCE: Final = 4

MARGIN: Final = 60.0
"""Seconds that parts live longer than their manifest says, so that a read that has begun can end."""

_HASH_OFF_LOOP: Final = 1 << 20


class Manifest(msgspec.Struct, frozen=True):
    """Part 0 of an upload, written last: what it describes is complete."""

    nbytes: int
    parts: int
    media_type: str
    expires: float  # Unix seconds


_encode = msgspec.msgpack.encode
_decoder = msgspec.msgpack.Decoder(Manifest)


class Spool:
    """Puts and gets uploads. Equal bytes are stored once; a later put only prolongs their life."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._one_put: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # by first byte of the digest

    async def put(self, data: bytes, media_type: str, *, ttl: float, deadline: float) -> Upload:
        """Stored for at least `ttl` seconds when it returns. `deadline` in Unix seconds.

        Raises QueueFull when the spool is full, and what `Broker.publish_stored` raises.
        """
        digest = await digest_of(data)
        async with self._one_put[digest[:2]]:
            await self._store(digest, data, media_type, time.time() + ttl, deadline)
        return Upload(digest=digest, nbytes=len(data), media_type=media_type)

    async def find(self, digest: str, *, deadline: float) -> Upload | None:
        """The upload of this digest, None if there is none that is complete. Raises DeadlineExceeded."""
        found = await self._manifest(digest, deadline)
        return None if found is None else Upload(digest, found[0].nbytes, found[0].media_type)

    async def get(self, upload: Upload, *, timeout: float) -> bytes:
        """The bytes, as they were put. Raises UploadGone (expired, incomplete, other digest) and ReadTimeout."""
        deadline = time.time() + timeout
        manifest = await self._read(upload.digest, 0, deadline)
        if manifest is None:
            raise UploadGone("the upload has expired")
        count = _decoder.decode(manifest.data).parts
        at_once = asyncio.Semaphore(PARTS_AT_ONCE)

        async def part(number: int) -> bytes:
            async with at_once:
                stored = await self._read(upload.digest, number, deadline)
            if stored is None:
                raise UploadGone("a part of the upload has expired")
            return stored.data

        try:
            async with asyncio.TaskGroup() as group:
                parts = [group.create_task(part(number)) for number in range(1, count + 1)]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        data = b"".join(task.result() for task in parts)
        if len(data) != upload.nbytes or await digest_of(data) != upload.digest:
            raise UploadGone("the stored bytes are not those that were uploaded")
        return data

    async def _store(self, digest: str, data: bytes, media_type: str, expires: float, deadline: float) -> None:
        found = await self._manifest(digest, deadline)
        if found is not None and found[0].expires >= expires:
            return
        parts = -(-len(data) // PART)
        while True:
            await self._store_parts(digest, data, expires, deadline)
            manifest = _encode(Manifest(len(data), parts, media_type, expires))
            try:
                await self._broker.publish_stored(
                    subjects.upload(digest, 0),
                    manifest,
                    deadline=deadline,
                    headers={EXPECTED_LAST_SUBJECT_SEQUENCE: str(found[1].seq if found else 0)},
                    ttl=expires - time.time(),
                )
                return
            except Conflict:
                found = await self._manifest(digest, deadline)
            if found is not None:
                if found[1].data == manifest:
                    return
                # another put ended meanwhile, and our parts may have replaced its longer-lived ones
                expires = max(expires, found[0].expires)

    async def _store_parts(self, digest: str, data: bytes, expires: float, deadline: float) -> None:
        at_once = asyncio.Semaphore(PARTS_AT_ONCE)

        async def store(start: int) -> None:
            async with at_once:
                await self._broker.publish_stored(
                    subjects.upload(digest, start // PART + 1),
                    data[start : start + PART],
                    deadline=deadline,
                    ttl=expires - time.time() + MARGIN,
                )

        try:
            async with asyncio.TaskGroup() as group:
                for start in range(0, len(data), PART):
                    group.create_task(store(start))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _manifest(self, digest: str, deadline: float) -> tuple[Manifest, Stored] | None:
        stored = await last_stored_until(self._broker, UPLOADS, subjects.upload(digest, 0), deadline)
        return None if stored is None else (_decoder.decode(stored.data), stored)

    async def _read(self, digest: str, number: int, deadline: float) -> Stored | None:
        left = deadline - time.time()
        return await direct_last(self._broker, UPLOADS, subjects.upload(digest, number), timeout=left)


async def digest_of(data: bytes) -> str:
    """blake2b-256, in hex; of much data off the loop."""
    return blake2b_256(data) if len(data) <= _HASH_OFF_LOOP else await asyncio.to_thread(blake2b_256, data)
