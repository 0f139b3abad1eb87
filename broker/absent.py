"""Put if absent: of everybody who stores something at a subject one wins, for ever, and all learn what is there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from msgspec import Struct

from broker.connection import Broker, Confirmed
from broker.errors import Conflict, RequestEnded
from broker.patience import until_room
from broker.reads import last_stored_until
from broker.subjects import EXPECTED_LAST_SUBJECT_SEQUENCE

_ABSENT: Final = {EXPECTED_LAST_SUBJECT_SEQUENCE: "0"}

REPEAT: Final = 0.02
"""Seconds until what lacks what it must contain is tried again."""


class Put(Struct, frozen=True):
    """What is stored after a put: mine if `won`, else another's."""

    won: bool
    seq: int
    data: bytes


async def put_if_absent(
    broker: Broker,
    stream: str,
    subject: str,
    data: bytes,
    *,
    deadline: float,
    mine: Callable[[bytes], bool] | None = None,
    unless: str | None = None,
    ttl: float | None = None,
    headers: dict[str, str] | None = None,
    patient: bool = True,
) -> Put:
    """Stores a message if its subject has none; else says which one is there.

    A put that was stored but not confirmed is recognised as won: equal bytes, or `mine(stored)`. When the subject
    turns out empty again it is tried again, unless a message is stored at `unless`: RequestEnded. While the stream is
    full it is tried again to the deadline, for what is stored is work that is done (rule 9); who is not `patient` gets
    QueueFull or StorageFull at once. `deadline` in Unix seconds, `ttl` in seconds. Raises also what
    `Broker.publish_stored` raises, but no Conflict.
    """
    expecting_none = {**_ABSENT, **(headers or {})}

    def store() -> Awaitable[Confirmed]:
        return broker.publish_stored(subject, data, deadline=deadline, headers=expecting_none, ttl=ttl)

    while True:
        try:
            stored = await (until_room(store) if patient else store())
            return Put(True, stored.seq, data)
        except Conflict:
            there = await last_stored_until(broker, stream, subject, deadline)
        if there is not None:
            won = there.data == data or (mine is not None and mine(there.data))
            return Put(won, there.seq, there.data)
        if unless is not None and await last_stored_until(broker, stream, unless, deadline) is not None:
            raise RequestEnded(f"{subject.split('.', 1)[0]}: the request has ended")
        await asyncio.sleep(REPEAT)
