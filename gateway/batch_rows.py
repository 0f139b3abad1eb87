"""A row of a batch job becomes a durable request in the batch lane, or a result that says why it cannot."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from typing import Any, Final

import msgspec

from broker.crash import crash_at
from broker.errors import QueueFull, StorageFull
from cornstalk.app import App
from cornstalk.batch import Begun, Given, row_request
from cornstalk.errors import BadInput, CornstalkError, Refused
from cornstalk.messages import Accepted, Row, Status
from gateway.acceptance import Acceptance
from gateway.admission import Admission
from gateway.batch_results import Results
from gateway.body import parse_json
from gateway.errors import Expired, answer_of
from gateway.intake import checked_input
from gateway.uploads import Uploads

log = logging.getLogger(__name__)

LOOK_EVERY: Final = 0.25
"""Seconds between two looks of a row that waits for room."""
AGAIN: Final = 0.5
"""Seconds until a row for which a stream was full is tried again."""


class Rows:
    """Starts rows. Starting one twice is harmless: its request has the id of the row."""

    def __init__(self, acceptance: Acceptance, uploads: Uploads, results: Results, admission: Admission) -> None:
        self._acceptance, self._uploads, self._results, self._admission = acceptance, uploads, results, admission

    async def start(self, job: str, begun: Begun, app: App, row: int, given: Given) -> None:
        """The row is queued, or has failed, when this returns. Waits for room. Raises BrokerError."""
        while True:
            await self._wait_for_room(tuple(app.components()))
            try:
                await self._acceptance.store(await self._accepted(job, begun, app, row, given))
                break
            except (QueueFull, StorageFull) as full:
                log.info("row %d of job %s waits: %s", row, job, full)
                await asyncio.sleep(AGAIN)
            except CornstalkError as error:
                status: Status = "expired" if isinstance(error, Expired) else "failed"
                cause = answer_of(error).error
                await self._results.without_request(job, row, begun.encoding, status, cause)
                break
        crash_at("batch.started")

    async def _wait_for_room(self, components: tuple[str, ...]) -> None:
        """Rows wait at the door where requests are refused, so that none is stuck in the middle."""
        while True:
            try:
                return await self._admission.check(components, "batch", durable=True)
            except Refused:
                await asyncio.sleep(LOOK_EVERY)

    async def _accepted(self, job: str, begun: Begun, app: App, row: int, given: Given) -> Accepted:
        request = row_request(job, row)
        return Accepted(
            request=request,
            tenant=begun.tenant,
            app=app.name,
            app_version=app.version,
            lane="batch",
            durable=True,
            deadline=begun.deadline,
            seed=int(request[:8], 16) >> 1,
            trace=begun.trace or f"00-{request}-{secrets.token_hex(8)}-01",
            accepted_at=time.time(),
            input=await checked_input(app, _fields(given), self._uploads, begun.deadline, {}),
            row=Row(job=job, row=row, encoding=begun.encoding),
        )


def _fields(given: Given) -> dict[str, Any]:
    """The fields of a row. Raises BadInput."""
    encoding, data = given[0], bytes(given[1])
    try:
        value = parse_json(data) if encoding == "json" else msgspec.msgpack.decode(data)
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise BadInput(f"the row cannot be read: {error}") from error
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise BadInput(f"expected an object, got {type(value).__name__}")
    return value
