"""What came of the rows of batch jobs: stored once each, in the form in which the job was submitted."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from broker.absent import put_if_absent
from broker.connection import HEADER_ROOM, Broker
from broker.crash import crash_at
from broker.errors import ReadTimeout, RequestEnded, UploadGone
from broker.facts import Facts
from broker.subjects import BATCH, ROW_STATUS, ROW_USAGE, batch_result, batch_result_part
from broker.subjects import finish as finish_subject
from cornstalk.batch import Result, encoded, row_request
from cornstalk.graph import State
from cornstalk.messages import Accepted, Encoding, Error, Finish, Row, Status, Usage
from cornstalk.usage import usage_of
from gateway.answers import whole_response
from gateway.history import History
from gateway.values import Values

STORE_WAIT: Final = 5.0
"""Seconds that storing a result may take until it is begun anew."""
PART: Final = 512 * 1024
"""Bytes of a response in one message, where it does not fit into its result."""
LIMIT: Final = 32 * PART
"""Bytes of a response."""

_SUMMED: Final = tuple(name for name in Usage.__struct_fields__ if name != "cached")


class Results:
    """Any gateway may store any result: the first one counts, and it is made of what is stored."""

    def __init__(self, broker: Broker, facts: Facts) -> None:
        self._broker, self._facts = broker, facts

    async def of_request(self, accepted: Accepted, row: Row, finish: Finish) -> None:
        """The request of a row has ended: its result is stored when this returns. Raises BrokerError."""
        state = await self._state(accepted.request)
        if state.accepted is None:
            return  # purged, so it has a result
        result = Result(
            job=row.job,
            row=row.row,
            status=finish.status,
            error=finish.error if finish.status != "done" else None,
            request=accepted.request,
            usage=total(node.usage for node in usage_of(state).nodes),
            times=finish.times or {"accepted": accepted.accepted_at},
        )
        if finish.status == "done":
            result = await self._answered(result, state, finish.response)
        elif finish.error is None:
            result = replace(result, error=Error(code=finish.status, message=f"the request ended {finish.status}"))
        await self._put(result, row.encoding)

    async def _state(self, request: str) -> State:
        """The facts of a request that has ended, up to its end at least."""
        ended = await self._facts.last(finish_subject(request))
        if ended is None:
            raise ReadTimeout("the end of the request is gone: it is driven again")
        return History(await self._facts.read(request, containing=ended.seq)).state

    async def without_request(self, job: str, row: int, encoding: Encoding, status: Status, error: Any) -> None:
        """A row that never ran. `error` as clients get it. Raises BrokerError."""
        at = {"ended": time.time()}
        await self._put(
            Result(job=job, row=row, status=status, error=error, request=row_request(job, row), times=at), encoding
        )

    async def _answered(self, result: Result, state: State, response: Any) -> Result:
        try:
            values = Values(self._broker, result.request)
            return replace(result, response=await whole_response(values, state, response))
        except (RequestEnded, UploadGone) as gone:
            cause = f"the row ended well, but what it answered was purged: {gone}"
            return replace(result, status="failed", error=Error(code="gone", message=cause))

    async def _put(self, result: Result, encoding: Encoding) -> None:
        data = encoded(result, encoding)
        if len(data) > self._broker.nc.max_payload - HEADER_ROOM:
            result = await self._in_parts(result, encoding)
            data = encoded(result, encoding)
        crash_at("batch.result")
        await put_if_absent(
            self._broker,
            BATCH,
            batch_result(result.job, result.row),
            data,
            deadline=time.time() + STORE_WAIT,
            headers={ROW_STATUS: result.status, ROW_USAGE: msgspec.json.encode(result.usage).decode()},
        )
        crash_at("batch.stored")

    async def _in_parts(self, result: Result, encoding: Encoding) -> Result:
        """The response in messages of its own, named by its content: whoever stores it too stores the same."""
        data = encoded(result.response, encoding)
        if len(data) > LIMIT:
            error = Error(code="too_large", message=f"expected a response of at most {LIMIT} bytes, got {len(data)}")
            return replace(result, status="failed", response=None, error=error)
        digest = hashlib.blake2b(data, digest_size=8).hexdigest()
        subjects = []
        for start in range(0, len(data), PART):
            subject = batch_result_part(result.job, result.row, digest, start // PART)
            part = data[start : start + PART]
            await put_if_absent(self._broker, BATCH, subject, part, deadline=time.time() + STORE_WAIT)
            subjects.append(subject)
        return replace(result, response=None, parts=tuple(subjects))


def total(usages: Iterable[Usage]) -> Usage:
    """What was consumed in all. That some of it was `cached` is no sum."""
    sums: dict[str, Any] = {}
    for usage in usages:
        for name in _SUMMED:
            sums[name] = sums.get(name, 0) + getattr(usage, name)
    return Usage(**sums)
