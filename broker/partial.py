"""Uploads that arrive bit by bit, through any gateway: whole parts wait under the digest that the client claims.

They stand beside the spool, not in it: bytes that turn out to be others never touch an upload that is complete.
"""

from __future__ import annotations

import time
from typing import Final

from broker import subjects
from broker.connection import Broker
from broker.errors import UploadGone
from broker.reads import direct_last
from broker.subjects import UPLOADS
from cornstalk.uploads import PART

PARTS_TTL: Final = 3600.0
"""Seconds that a part waits for the rest."""


class Partial:
    """Parts of `PART` bytes, stored for `PARTS_TTL` when `put` returns. The last bytes of an upload never wait here."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def there(self, digest: str) -> int:
        """Bytes from the beginning on, without a hole. Raises ReadTimeout."""
        filter_ = {"subjects_filter": subjects.parts_under_way(digest)}
        names = (await self._broker.api(f"STREAM.INFO.{UPLOADS}", filter_))["state"].get("subjects") or {}
        count = 0
        while subjects.upload_under_way(digest, count + 1) in names:
            count += 1
        return count * PART

    async def put(self, digest: str, start: int, data: bytes, *, deadline: float) -> None:
        """The part that begins at `start`. Again does no harm. Raises what `Broker.publish_stored` raises."""
        if start % PART or len(data) != PART:
            raise ValueError(f"{len(data)} bytes at {start} are no part")
        subject = subjects.upload_under_way(digest, start // PART + 1)
        await self._broker.publish_stored(subject, data, deadline=deadline, ttl=PARTS_TTL)

    async def get(self, digest: str, nbytes: int, *, timeout: float) -> bytes:
        """The first bytes, which are parts. Raises UploadGone (a part has expired) and ReadTimeout."""
        deadline, parts = time.time() + timeout, []
        for number in range(1, nbytes // PART + 1):
            subject = subjects.upload_under_way(digest, number)
            stored = await direct_last(self._broker, UPLOADS, subject, timeout=deadline - time.time())
            if stored is None:
                raise UploadGone("a part that came before has expired")
            parts.append(stored.data)
        return b"".join(parts)

    async def drop(self, digest: str) -> None:
        """Forgets them all."""
        await self._broker.api(f"STREAM.PURGE.{UPLOADS}", {"filter": subjects.parts_under_way(digest)})
