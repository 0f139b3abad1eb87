"""Messages on `batch.submit.<app>`: taken, refused, or known already.

A message is taken by a fact that names it. Every step is put-if-absent, so a message that comes again, to whichever
gateway, finds what was done with it.
"""

from __future__ import annotations

import hashlib
import logging
from typing import Final, NamedTuple

from broker.connection import Broker
from broker.crash import crash_at
from broker.reads import Stored
from broker.subjects import BATCH, TRACEPARENT, batch_unreadable, batch_word, token
from broker.topology import share_in_use
from cornstalk.batch import ROWS, Part, Refusal, Submission, encoding_of, job_id, named, submission
from cornstalk.errors import BadInput, CornstalkError, Refused, TooLarge
from gateway.admission import FULL
from gateway.apps import Apps
from gateway.batch_store import JobStore
from gateway.errors import answer_of
from gateway.options import traceparent

log = logging.getLogger(__name__)

RETRY_AFTER: Final = 60.0
"""Seconds after which a job that found no room may be tried again."""


class Taken(NamedTuple):
    """A message that was taken."""

    job: str
    app: str
    given: Submission
    part: Part
    stored: Stored
    trace: str  # W3C traceparent that its client sent; "" if none


class Intake:
    """Stateless: all that it knows of a job is stored."""

    def __init__(self, broker: Broker, store: JobStore, apps: Apps) -> None:
        self._broker, self._store, self._apps = broker, store, apps

    async def take(self, seq: int) -> Taken | None:
        """The message, taken. None: there is nothing to do for it, now or later. Raises NewerVersion, BrokerError."""
        stored = await self._store.message(seq)
        if stored is None:
            return None  # its job is over
        try:
            taken = self._read(stored)
            mine = await self._register(taken)
        except CornstalkError as error:
            await self._refuse(stored, error)
        else:
            if mine:
                return taken
            log.info("a message of job %s came again", taken.job)
        await self._store.forget(seq)
        return None

    def _read(self, stored: Stored) -> Taken:
        given = submission(stored.data)
        app = stored.subject.rpartition(".")[2]
        rows = given.inputs()
        if not rows and not (given.last and given.first):
            raise BadInput("expected at least one row, got none", "rows")
        if given.first + len(rows) > ROWS:
            raise TooLarge(f"expected at most {ROWS} rows in a job, got {given.first + len(rows)}", "rows")
        digest = hashlib.blake2b(b"".join(bytes(row) for row in rows), digest_size=16)
        part = Part(first=given.first, count=len(rows), last=given.last, seq=stored.seq, digest=digest.hexdigest())
        trace = traceparent(stored.headers.get(TRACEPARENT, ""))
        return Taken(job_id(_tenant(given.tenant), app, given.idempotency_key), app, given, part, stored, trace)

    async def _register(self, taken: Taken) -> bool:
        """Whether the message is part of its job; False if it repeats one that is. Raises BadInput if it is neither."""
        job, part = taken.job, taken.part
        there = await self._store.part(job, part.first)
        if there is None:
            if await self._store.is_over(job):
                raise BadInput("this key was used for a job that has ended", "idempotency_key")
            if await self._store.begun(job) is not None:
                raise BadInput("this key was used for a job that runs, and has other rows", "idempotency_key")
            await self._apps.current(taken.app)
            if (used := await share_in_use(self._broker, BATCH)) > FULL:
                raise Refused(f"jobs and results take {used:.0%} of what is kept for both", retry_after=RETRY_AFTER)
            there = await self._store.put_part(job, part)
            crash_at("batch.registered")
        if there.seq == part.seq:
            begun = await self._store.begun(job)  # once more: it may have begun, or ended, beside the line above
            if begun is not None and part.seq not in {seq for _, _, seq in begun.parts}:
                raise begun_already()
            return True
        if (there.count, there.last, there.digest) != (part.count, part.last, part.digest):
            raise BadInput(f"this key was used with other rows from {part.first} on", "idempotency_key")
        return False

    async def _refuse(self, stored: Stored, error: CornstalkError) -> None:
        about = named(stored.data)
        app = stored.subject.rpartition(".")[2]
        job = "" if about is None else job_id(about.tenant, app, about.idempotency_key)
        log.info("refused %d for %s: %s", stored.seq, app, error)
        subject = batch_word(job, "refused") if job else batch_unreadable(stored.seq)
        refusal = Refusal(job=job, seq=stored.seq, error=answer_of(error).error)
        await self._store.refuse(subject, refusal, encoding_of(stored.data))
        crash_at("batch.refused")


def begun_already() -> BadInput:
    return BadInput("this key was used for a job that has begun, and has other rows", "idempotency_key")


def _tenant(text: str) -> str:
    try:
        return token(text)
    except ValueError as error:
        raise BadInput(str(error), "tenant") from error
