"""One batch job from its first row to its summary. Whatever dies, whoever runs it next goes on where it was.

    for each row without a result, in order: wait for its turn -> start it, or store why it cannot
    until every row has a result; at a cancel, or at the deadline, the rest gets one without running

Where it was follows from what is stored: rows are started in order and few at a time, so what may be under way from a
life before are the first ones without a result, and starting them again is harmless.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final, NamedTuple

from broker.connection import Broker
from broker.crash import crash_at
from broker.errors import BrokerError
from broker.reads import last_stored
from broker.subjects import BATCH, batch_result
from cornstalk.app import App
from cornstalk.batch import Begun, Given, Progress, Summary, row_request
from cornstalk.errors import UnknownRequest
from cornstalk.messages import Error, Status
from gateway.acceptance import Acceptance
from gateway.apps import Apps
from gateway.batch_results import Results
from gateway.batch_rows import Rows
from gateway.batch_store import JobStore
from gateway.batch_tally import Tally
from gateway.batch_window import ROWS, Window, Windows
from gateway.requests import Requests

log = logging.getLogger(__name__)

TELL_EVERY: Final = 1.0
"""Seconds between two tellings of progress."""
AT_ONCE: Final = 64
"""Results of rows that never ran which are stored side by side."""
ENDING: Final = 10.0
"""Seconds beside ack_wait in which the gateways that drive the last rows may store how they ended."""


class Jobs(NamedTuple):
    """What running a job takes. Shared by all jobs of a gateway."""

    broker: Broker
    store: JobStore
    apps: Apps
    acceptance: Acceptance
    requests: Requests
    rows: Rows
    results: Results
    windows: Windows
    ack_wait: float


class Job:
    """A job on the gateway that holds its last message. Soft; another gateway can make its own at any time."""

    def __init__(self, jobs: Jobs, job: str, begun: Begun, is_new: bool) -> None:
        """`is_new`: none of its rows can have been started before."""
        self._jobs, self._job, self._begun, self._is_new = jobs, job, begun, is_new
        self._window: Window = jobs.windows.of(begun.app)
        self._under_way: set[int] = set()
        self._tally = Tally(jobs.broker, job, begun.total, self._row_ended)

    async def run(self) -> None:
        """Returns when the summary is stored. Raises BrokerError, CornstalkError: to be run again."""
        try:
            async with self._tally as tally:
                telling = asyncio.create_task(self._tell())
                try:
                    await self._rows()
                finally:
                    telling.cancel()
                    with suppress(asyncio.CancelledError):
                        await telling
                if not tally.has_summary:
                    await self._jobs.store.put_summary(self._summary(), self._begun.encoding)
                    crash_at("batch.summed")
        finally:
            for _ in self._under_way:
                self._window.give_back()
        for part in await self._jobs.store.parts(self._job):  # also one that came while it began, and is not in it
            await self._jobs.store.forget(part.seq)

    async def _rows(self) -> None:
        """Returns when every row has a result."""
        tally = self._tally
        feeding = asyncio.create_task(self._feed())
        try:
            over = await self._first_of(feeding, tally.over.wait(), tally.cancelled.wait(), within=self._left())
        finally:
            feeding.cancel()
            await asyncio.wait([feeding])
        if not over or not tally.over.is_set():
            await self._end_rest("cancelled" if tally.cancelled.is_set() else "expired")

    async def _first_of(self, feeding: asyncio.Task[None], *waits: Coroutine[Any, Any, Any], within: float) -> bool:
        """Whether one of the waits came to its end in time. Raises what feeding and following raise."""
        waiting = {asyncio.create_task(wait) for wait in waits}
        working = {feeding, self._tally.following}
        end = time.monotonic() + within
        try:
            while True:
                await asyncio.wait(
                    waiting | working, timeout=max(0.0, end - time.monotonic()), return_when=asyncio.FIRST_COMPLETED
                )
                for task in [task for task in working if task.done()]:
                    task.result()
                    working.discard(task)
                if any(task.done() for task in waiting) or time.monotonic() >= end:
                    return any(task.done() for task in waiting)
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)

    async def _feed(self) -> None:
        """Starts the rows, each when it is its turn."""
        app: App | None = None
        for first, count, seq in self._begun.parts:
            if all(self._tally.has(row) for row in range(first, first + count)):
                continue
            rows: list[Given] = []
            for row in range(first, first + count):
                if self._tally.has(row):
                    continue
                await self._window.take(self._begun.priority)
                self._under_way.add(row)
                rows = rows or await self._jobs.store.rows(seq)
                app = app or await self._jobs.apps.version(self._begun.app, self._begun.app_version)
                if not await self._has_result(row):
                    await self._jobs.rows.start(self._job, self._begun, app, row, rows[row - first])

    async def _has_result(self, row: int) -> bool:
        """Looks where a row may have run before: what was read at the beginning may be older than that."""
        if self._is_new:
            return False
        return await last_stored(self._jobs.broker, BATCH, batch_result(self._job, row)) is not None

    def _row_ended(self, row: int) -> None:
        if row in self._under_way:
            self._under_way.discard(row)
            self._window.give_back()

    async def _end_rest(self, status: Status) -> None:
        """Gives every row that has none a result: those that run get theirs from who drives them."""
        tally = self._tally
        missing = tally.missing()
        # a life before this one may have had as many under way; what was started later has a higher number
        running = [row for row in missing[: 2 * ROWS] if not await self._ended(row, status)]
        rest = missing[2 * ROWS :]
        for at in range(0, len(rest), AT_ONCE):
            await asyncio.gather(*(self._never_ran(row, status) for row in rest[at : at + AT_ONCE]))
        if running:
            wait = asyncio.create_task(tally.over.wait())
            await asyncio.wait(
                [wait, tally.following], timeout=self._jobs.ack_wait + ENDING, return_when="FIRST_COMPLETED"
            )
            wait.cancel()
        for row in tally.missing():
            await self._never_ran(row, status)

    async def _ended(self, row: int, status: Status) -> bool:
        """Whether a row has its result now; False if it runs and will have one."""
        request = row_request(self._job, row)
        if not await self._jobs.acceptance.queue(request):
            await self._never_ran(row, status)
            return True
        if status == "cancelled":
            with suppress(UnknownRequest):  # ended and purged meanwhile
                await self._jobs.requests.cancel(request, "the batch job was cancelled")
        return False

    async def _never_ran(self, row: int, status: Status) -> None:
        message = "the job was cancelled" if status == "cancelled" else "the deadline of the job passed"
        error = Error(code=status, message=message)
        await self._jobs.results.without_request(self._job, row, self._begun.encoding, status, error)

    async def _tell(self) -> None:
        """Stores the progress whenever there is some."""
        told: Progress | None = None
        while True:
            progress = Progress(job=self._job, rows=self._begun.total, **self._tally.ended)
            if progress != told:
                try:
                    await self._jobs.store.put_progress(progress, self._begun.encoding)
                    told = progress
                except BrokerError as error:
                    log.info("progress of job %s is told later: %s", self._job, type(error).__name__)
            await asyncio.sleep(TELL_EVERY)

    def _summary(self) -> Summary:
        ended = self._tally.ended
        status: Status = "done"
        if ended["cancelled"] and self._tally.cancelled.is_set():
            status = "cancelled"
        elif ended["expired"]:
            status = "expired"
        times = {"begun": self._begun.begun_at, "ended": time.time()}
        counts = {name: ended[name] for name in ("done", "failed", "cancelled", "expired")}
        return Summary(
            job=self._job, rows=self._begun.total, status=status, usage=self._tally.usage, times=times, **counts
        )

    def _left(self) -> float:
        return max(0.0, self._begun.deadline - time.time())
