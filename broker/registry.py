"""Small records by key: apps, components, workers, locks. A NATS key-value bucket, read through the leader."""

from __future__ import annotations

import re
import time
from itertools import groupby
from typing import Any, Final, NamedTuple

from broker.connection import Broker
from broker.errors import Conflict
from broker.reads import Stored, TooManySubjects, last_stored_until, multi_last, pages
from broker.subjects import EXPECTED_LAST_SUBJECT_SEQUENCE

_KEY = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\Z")
_DELETED: Final = ("KV-Operation", "Nats-Marker-Reason")


class Entry(NamedTuple):
    """A record and its revision, for `update`."""

    data: bytes
    revision: int


class Registry:
    """One bucket. Every call is repeated through an outage for `timeout` seconds, then raises DeadlineExceeded.

    A write that was stored but not confirmed is recognised by its bytes: contended records must name their writer.
    """

    def __init__(self, broker: Broker, bucket: str, *, timeout: float = 5.0) -> None:
        self._broker = broker
        self._stream = f"KV_{bucket}"
        self._prefix = f"$KV.{bucket}."
        self._timeout = timeout

    async def get(self, key: str) -> Entry | None:
        """The record, or None."""
        stored = await self._stored(key)
        return None if stored is None or _is_deleted(stored) else Entry(stored.data, stored.seq)

    async def put(self, key: str, data: bytes) -> int:
        """Writes whatever is there; the revision."""
        confirmed = await self._broker.publish_stored(self._subject(key), data, deadline=time.time() + self._timeout)
        return confirmed.seq

    async def create(self, key: str, data: bytes) -> int:
        """Writes if there is none; the revision. Raises Conflict."""
        try:
            return await self.update(key, data, 0)
        except Conflict:
            stored = await self._stored(key)
            if stored is None or not _is_deleted(stored):
                raise
        return await self.update(key, data, stored.seq)

    async def update(self, key: str, data: bytes, revision: int) -> int:
        """Writes if the record still has this revision; the new one. Raises Conflict."""
        try:
            confirmed = await self._broker.publish_stored(
                self._subject(key),
                data,
                deadline=time.time() + self._timeout,
                headers={EXPECTED_LAST_SUBJECT_SEQUENCE: str(revision)},
            )
            return confirmed.seq
        except Conflict:
            stored = await self._stored(key)
            if stored is None or stored.seq == revision or stored.data != data or _is_deleted(stored):
                raise
            return stored.seq

    async def delete(self, key: str, revision: int | None = None) -> None:
        """Removes the record, or only what is not newer than `revision`. Idempotent. Raises ReadTimeout."""
        purge: dict[str, Any] = {"filter": self._subject(key)}
        if revision is not None:
            purge["seq"] = revision + 1  # the first one that stays
        await self._broker.api(f"STREAM.PURGE.{self._stream}", purge, timeout=self._timeout)

    async def keys(self, prefix: str = "") -> list[str]:
        """The keys that begin with `prefix`, sorted; [] for an empty bucket. Raises ReadTimeout."""
        return sorted(await self.entries(prefix))

    async def entries(self, prefix: str = "") -> dict[str, Entry]:
        """The records whose keys begin with `prefix`. Raises ReadTimeout."""
        everything = f"{self._prefix}>"
        try:
            found, _ = await multi_last(self._broker, self._stream, everything, timeout=self._timeout)
        except TooManySubjects:
            found = [stored async for stored in pages(self._broker, self._stream, everything)]
        return {
            stored.subject.removeprefix(self._prefix): Entry(stored.data, stored.seq)
            for stored in found
            if stored.subject.startswith(self._prefix + prefix) and not _is_deleted(stored)
        }

    async def history(self, key: str) -> list[bytes]:
        """What the bucket keeps of a key, newest first, each writing once. Raises ReadTimeout."""
        found = [s async for s in pages(self._broker, self._stream, self._subject(key)) if not _is_deleted(s)]
        return [data for data, _ in groupby(stored.data for stored in reversed(found))]

    async def _stored(self, key: str) -> Stored | None:
        return await last_stored_until(self._broker, self._stream, self._subject(key), time.time() + self._timeout)

    def _subject(self, key: str) -> str:
        if not _KEY.match(key):
            raise ValueError(f"not a key: {key[:40]!r}")
        return self._prefix + key


def _is_deleted(stored: Stored) -> bool:
    """Markers that other tools leave when they delete."""
    return any(name in stored.headers for name in _DELETED)
