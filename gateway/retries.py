"""Dead letters that are asked again or removed, with the admin token."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request
from starlette.responses import Response

from broker.errors import Rejected, UploadGone
from broker.lifetimes import fact_ttl
from broker.reads import Stored
from broker.refusals import CANNOT_DELETE
from broker.subjects import DLQ, token
from broker.uploads import Spool
from cornstalk.errors import BadInput
from cornstalk.ids import hashed_id
from cornstalk.messages import Accepted, Malformed, NewerVersion, StreamRef, Upload, decode, extensions
from gateway.deadletters import READ_WITHIN, letter_of, stored_letter
from gateway.errors import json_response
from gateway.http import check_admin, service_of
from gateway.options import Options
from gateway.service import Service

router = APIRouter()


class CannotRetry(BadInput):
    """Raised when the request of a dead letter cannot be asked again as it was."""

    code = "cannot_retry"
    status = 409


@router.post("/dead-letters/{letter}/retry")
async def retry(letter: str, request: Request) -> Response:
    """Admin: asks the whole request again, as a durable one, on the app as it is now; then the letter is removed.

    Idempotent: a letter stands for one new request, however often it is tried.
    """
    service = service_of(request)
    check_admin(request, service)
    stored = await stored_letter(service, letter)
    accepted = await _accepted(service, stored)
    app = await service.apps.current(accepted.app)
    deadline = time.time() + accepted.deadline - accepted.accepted_at
    await _keep_uploads(service, accepted, deadline)
    options = Options(
        request=hashed_id(accepted.tenant, accepted.app, f"dead letter {stored.seq} of {accepted.request}"),
        idempotent=True,
        tenant=accepted.tenant,
        lane=accepted.lane,
        durable=True,
        deadline=deadline,
        resume_grace=0.0,
        seed=accepted.seed,
        trace=accepted.trace,
    )
    again = await service.requests.accept(app, accepted.input, options)
    await _remove(service, stored.seq)
    return json_response({"dead_letter": stored.seq, "request": again}, 202)


@router.delete("/dead-letters/{letter}")
async def remove(letter: str, request: Request) -> Response:
    """Admin: removes one dead letter."""
    service = service_of(request)
    check_admin(request, service)
    await _remove(service, (await stored_letter(service, letter)).seq)
    return json_response({"removed": 1})


@router.delete("/dead-letters")
async def purge(request: Request) -> Response:
    """Admin: removes all dead letters, or those of one `component`, of one `reason`."""
    service = service_of(request)
    check_admin(request, service)
    component, reason = (_token(request, name) for name in ("component", "reason"))
    purged = await service.broker.api(f"STREAM.PURGE.{DLQ}", {"filter": f"dlq.{component}.{reason}.>"})
    return json_response({"removed": purged["purged"]})


async def _accepted(service: Service, stored: Stored) -> Accepted:
    """The request as it was asked. Raises CannotRetry."""
    body = letter_of(stored)
    if body is None or not body.accepted:
        raise CannotRetry("this letter does not hold the request: send the request again", "id")
    try:
        accepted = decode(Accepted, body.accepted)
    except (Malformed, NewerVersion) as error:
        raise CannotRetry(f"the request was stored by another release: {error}", "id") from error
    if any(isinstance(value, StreamRef) for value in accepted.input.values()):
        raise CannotRetry("the input of this request was streamed in and is not kept: send it again", "id")
    return accepted


async def _keep_uploads(service: Service, accepted: Accepted, deadline: float) -> None:
    """What the request names by its content lives on with the new one. Raises CannotRetry when it has expired."""
    spool = Spool(service.broker)
    for upload in {e for e in extensions(accepted.input) if isinstance(e, Upload)}:
        try:
            data = await spool.get(upload, timeout=READ_WITHIN)
        except UploadGone as error:
            raise CannotRetry("an upload of this request has expired: send it again", "id") from error
        await spool.put(data, upload.media_type, ttl=fact_ttl(deadline), deadline=time.time() + READ_WITHIN)


async def _remove(service: Service, seq: int) -> None:
    try:
        await service.broker.api(f"STREAM.MSG.DELETE.{DLQ}", {"seq": seq})
    except Rejected as error:
        if error.err_code != CANNOT_DELETE:  # removed by another call meanwhile
            raise


def _token(request: Request, name: str) -> str:
    """A query parameter as one token of a filter; all if it is not given."""
    text = request.query_params.get(name)
    if text is None:
        return "*"
    try:
        return token(text)
    except ValueError as error:
        raise BadInput(str(error), name) from error
