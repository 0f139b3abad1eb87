"""A job begins once all of its rows are there: from then on it is one thing, whatever else comes under its key."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from broker.crash import crash_at
from broker.subjects import batch_word
from cornstalk.batch import Begun, Part, Refusal, Summary, encoding_of
from cornstalk.errors import BadInput, CornstalkError
from cornstalk.messages import Error, Status
from gateway.apps import Apps
from gateway.batch_intake import Taken, begun_already
from gateway.batch_store import JobStore
from gateway.errors import answer_of

LONGEST_PAUSE: Final = 30.0
"""Seconds between two looks whether rows have come."""


class Incomplete(Exception):
    """Raised when rows before the last message are not there yet: look again after `delay` seconds."""

    def __init__(self, delay: float) -> None:
        super().__init__(f"look again after {delay:.1f} s")
        self.delay = delay


async def begin(store: JobStore, apps: Apps, last: Taken, delivered: int) -> tuple[Begun, bool] | None:
    """The job whose last message this is, and whether it begins just now. None if it has ended, or cannot begin.

    `delivered`: how often the message was. Raises Incomplete, BrokerError.
    """
    if (begun := await store.begun(last.job)) is not None:
        await _refuse_others(store, last, begun)  # a crash after the line that stored it may have left some
        return begun, False
    deadline = last.stored.time + last.given.deadline
    parts = await store.parts(last.job)
    try:
        if (gap := _gap(parts, last.part)) is not None:
            if time.time() < deadline:
                raise Incomplete(min(LONGEST_PAUSE, 0.1 * 2.0 ** min(delivered, 10), deadline - time.time()))
            message = f"rows {gap[0]} to {gap[1] - 1} did not come before the deadline"
            await _end(store, last, parts, "expired", Error(code="expired", message=message))
            return None
        version = (await apps.current(last.app)).version
    except CornstalkError as error:
        await _end(store, last, parts, "failed", answer_of(error).error)
        return None
    begun = Begun(
        app=last.app,
        app_version=version,
        tenant=last.given.tenant,
        priority=last.given.priority,
        deadline=deadline,
        encoding=encoding_of(last.stored.data),
        trace=last.trace,
        total=last.part.first + last.part.count,
        parts=tuple((part.first, part.count, part.seq) for part in parts),
        begun_at=time.time(),
    )
    stored = await store.put_begun(last.job, begun)
    crash_at("batch.begun")
    await _refuse_others(store, last, stored)
    return stored, stored == begun


async def _refuse_others(store: JobStore, last: Taken, begun: Begun) -> None:
    """Messages that were taken after the parts had been read, and looked for Begun before it was stored."""
    mine = {seq for _, _, seq in begun.parts}
    for part in await store.parts(last.job):
        if part.seq not in mine:
            refusal = Refusal(job=last.job, seq=part.seq, error=answer_of(begun_already()).error)
            await store.refuse(batch_word(last.job, "refused"), refusal, encoding_of(last.stored.data))
            await store.forget(part.seq)


def _gap(parts: Sequence[Part], last: Part) -> tuple[int, int] | None:
    """(from, to) of the first rows that are missing before the last ones. Raises BadInput if the parts do not fit."""
    end = last.first + last.count
    at = 0
    for part in parts:
        if part.last and part.seq != last.seq:
            raise BadInput(f"the messages from row {part.first} and from row {last.first} on both say `last`", "last")
        if part.first + part.count > end:
            raise BadInput(f"there are rows after the last one, which is {end - 1}", "last")
        if part.first < at:
            raise BadInput(f"row {part.first} came twice", "first")
        if part.first > at:
            return at, part.first
        at += part.count
    return (at, end) if at < end else None  # what the leader has may not have been read


async def _end(store: JobStore, last: Taken, parts: Sequence[Part], status: Status, error: object) -> None:
    rows = sum(part.count for part in parts)
    times = {"ended": time.time()}
    summary = Summary(job=last.job, rows=rows, status=status, error=error, times=times)
    await store.put_summary(summary, encoding_of(last.stored.data))
    for part in parts:
        await store.forget(part.seq)
