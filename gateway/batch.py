"""Batch jobs: gateways compete for what clients submit, and whoever holds the last message of a job runs the job."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from broker.pull import Delivery, PullLoop
from broker.subjects import BATCH
from cornstalk.errors import CornstalkError
from cornstalk.messages import NewerVersion
from gateway.batch_begin import Incomplete, begin
from gateway.batch_intake import Intake
from gateway.batch_job import Job, Jobs

log = logging.getLogger(__name__)

CREDITS: Final = 256
"""Messages that a gateway holds at once: jobs that run or wait for their turn."""
LATER: Final = 5.0
"""Seconds before a message that cannot be handled here is offered again."""
HAND_BACK: Final = 2.0
"""Seconds that handing back may take at the end of this gateway; what is left comes back after ack_wait."""


class Batch:
    """Competes for `batch.submit.*`. A message is acked once nothing is left to do for it, so adoption is redelivery.

    What is delivered are headers: rows are read when their turn comes.
    """

    def __init__(self, intake: Intake, jobs: Jobs) -> None:
        self._intake, self._jobs = intake, jobs
        self._pull = PullLoop(jobs.broker, BATCH, "batch", self._handle, credits=CREDITS)
        self._running: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        await self._jobs.windows.start()
        await self._pull.start()

    async def close(self) -> None:
        """Claims nothing more and hands the jobs to the other gateways."""
        await self._pull.stop()
        for task in self._running:
            task.cancel()
        await self._pull.join(HAND_BACK)
        await self._jobs.windows.close()

    async def _handle(self, delivery: Delivery) -> None:
        try:
            job = await self._job(delivery)
            if job is not None and not await self._ran(job, delivery):
                await delivery.nak(0.0)  # this gateway stops: another one may go on at once
                return
        except NewerVersion as error:
            log.warning("handed back: %s", error)
            await delivery.nak(LATER)
        except Incomplete as wait:
            await delivery.nak(wait.delay)
        except CornstalkError as error:
            log.warning("handed back: a job cannot run here: %s", error)
            await delivery.nak(LATER)
        else:
            await delivery.ack()

    async def _job(self, delivery: Delivery) -> Job | None:
        """The job that this message begins, or has begun. None: there is nothing more to do for it."""
        taken = await self._intake.take(delivery.stream_seq)
        if taken is None or not taken.given.last:
            return None
        begun = await begin(self._jobs.store, self._jobs.apps, taken, delivery.delivered)
        return None if begun is None else Job(self._jobs, taken.job, *begun)

    async def _ran(self, job: Job, delivery: Delivery) -> bool:
        """Whether the job ran to its end."""
        task = asyncio.create_task(job.run())
        self._running.add(task)
        try:
            while not task.done():
                await delivery.in_progress()
                await asyncio.wait([task], timeout=self._jobs.ack_wait / 3)
        finally:
            self._running.discard(task)
        if task.cancelled():
            return False
        task.result()
        return True
