"""Batch jobs as they are stored in BATCH: messages of clients, facts of jobs, all of them put-if-absent."""

from __future__ import annotations

import time
from typing import Final

from broker.absent import Put, put_if_absent
from broker.connection import Broker
from broker.errors import Rejected, RequestEnded
from broker.reads import Stored, last_stored, pages, stored_at
from broker.refusals import CANNOT_DELETE, NO_MESSAGE
from broker.subjects import BATCH, ROLLUP, batch_job, batch_job_facts, batch_word
from cornstalk.batch import Begun, Given, Part, Progress, Refusal, Summary, encoded, encoding_of, submission
from cornstalk.messages import Encoding, decode, encode

READ_WAIT: Final = 5.0
"""Seconds that reading a message of up to 1 MiB may take."""
STORE_WAIT: Final = 5.0
"""Seconds that storing a fact may take."""


class JobStore:
    """Stateless. Everything raises BrokerError when NATS is away or full for longer than it may take."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def message(self, seq: int) -> Stored | None:
        """A message of a client, unless it has been removed. Read through the leader: a copy may not have it yet."""
        return await stored_at(self._broker, BATCH, seq, timeout=READ_WAIT)

    async def rows(self, seq: int) -> list[Given]:
        """The rows of a message that was taken. Raises RequestEnded when they are gone."""
        stored = await self.message(seq)
        if stored is None:
            raise RequestEnded("the rows of this job are gone: it is over, or older than what is kept")
        encoding = encoding_of(stored.data)
        return [(encoding, row) for row in submission(stored.data).inputs()]

    async def forget(self, seq: int) -> None:
        """Removes a message of a client. Idempotent."""
        try:
            await self._broker.api(f"STREAM.MSG.DELETE.{BATCH}", {"seq": seq, "no_erase": True})
        except Rejected as error:
            if error.err_code not in (NO_MESSAGE, CANNOT_DELETE):
                raise

    async def part(self, job: str, first: int) -> Part | None:
        """What was taken that begins with this row."""
        stored = await last_stored(self._broker, BATCH, batch_job(job, first))
        return None if stored is None else decode(Part, stored.data)

    async def parts(self, job: str) -> list[Part]:
        """All that was taken, by first row; maybe not the newest."""
        found = [
            decode(Part, stored.data)
            async for stored in pages(self._broker, BATCH, batch_job_facts(job))
            if stored.subject.rpartition(".")[2].isdigit()
        ]
        return sorted(found, key=lambda part: part.first)

    async def put_part(self, job: str, part: Part) -> Part:
        """The one that is stored."""
        return decode(Part, (await self._put(batch_job(job, part.first), encode(part))).data)

    async def begun(self, job: str) -> Begun | None:
        stored = await last_stored(self._broker, BATCH, batch_job(job, "begun"))
        return None if stored is None else decode(Begun, stored.data)

    async def put_begun(self, job: str, begun: Begun) -> Begun:
        """The one that is stored."""
        return decode(Begun, (await self._put(batch_job(job, "begun"), encode(begun))).data)

    async def is_over(self, job: str) -> bool:
        return await last_stored(self._broker, BATCH, batch_word(job, "summary")) is not None

    async def put_summary(self, summary: Summary, encoding: Encoding) -> None:
        await self._put(batch_word(summary.job, "summary"), encoded(summary, encoding))

    async def refuse(self, subject: str, refusal: Refusal, encoding: Encoding) -> None:
        """Once for each message that is refused."""
        await self._broker.publish_stored(
            subject,
            encoded(refusal, encoding),
            deadline=time.time() + STORE_WAIT,
            msg_id=f"refused:{refusal.seq}",
        )

    async def put_progress(self, progress: Progress, encoding: Encoding) -> None:
        """Takes the place of the one before."""
        await self._broker.publish_stored(
            batch_word(progress.job, "progress"),
            encoded(progress, encoding),
            deadline=time.time() + STORE_WAIT,
            headers={ROLLUP: "sub"},
        )

    async def _put(self, subject: str, data: bytes) -> Put:
        return await put_if_absent(self._broker, BATCH, subject, data, deadline=time.time() + STORE_WAIT)
