"""Dead letters: work that was given up, for whoever runs the system, with the admin token. Read-only: retries.py."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from broker.connection import Broker
from broker.reads import Stored, page, stored_at
from broker.subjects import ALL_DEAD_LETTERS, DLQ
from cornstalk.errors import BadInput
from cornstalk.extensions import Extension
from cornstalk.messages import (
    DeadLetter,
    Malformed,
    NewerVersion,
    WorkItem,
    decode,
    encode,
    substitute,
)
from gateway.errors import json_response
from gateway.http import check_admin, service_of
from gateway.service import Service

router = APIRouter()

PAGE: Final = 100
"""Letters of one answer, unless it is asked for fewer or more."""
LONGEST_PAGE: Final = 500
LAST: Final = 10**18
"""No stream comes to this many messages."""
READ_WITHIN: Final = 5.0
"""Seconds for each read of the stream."""


class UnknownDeadLetter(BadInput):
    """Raised when no dead letter has this id: there never was one, or it is older than a week."""

    code = "unknown_dead_letter"
    status = 404


@router.get("/dead-letters")
async def dead_letters(request: Request) -> Response:
    """Admin: dead letters, newest first; `limit` of them, older than the one of id `before`. `next`: `before` of the
    next page, absent on the last.
    """
    service = service_of(request)
    check_admin(request, service)
    limit = _number(request, "limit", PAGE, LONGEST_PAGE) or PAGE
    before = _number(request, "before", None, LAST)
    letters, following = await _newest(service.broker, limit, before)
    body: dict[str, Any] = {"dead_letters": letters}
    return json_response(body if following is None else body | {"next": following})


@router.get("/dead-letters/{letter}")
async def dead_letter(letter: str, request: Request) -> Response:
    """Admin: one dead letter with its work item. Values of the inputs only when asked for by `payload=true`."""
    service = service_of(request)
    check_admin(request, service)
    stored = await stored_letter(service, letter)
    item = _item(letter_of(stored))
    payload = request.query_params.get("payload") == "true"
    return json_response(_described(stored) | {"item": item and _item_described(item, payload)})


async def stored_letter(service: Service, letter: str) -> Stored:
    """Raises BadInput for what is no number, UnknownDeadLetter."""
    if not (number := _whole(letter)):
        raise BadInput(f"expected the number of a dead letter, from 1 on, got {letter[:40]!r}", "id")
    stored = await stored_at(service.broker, DLQ, number, timeout=READ_WITHIN)
    if stored is None:
        raise UnknownDeadLetter(f"no dead letter {letter} is stored: they are kept for a week", "id")
    return stored


async def _newest(broker: Broker, limit: int, before: int | None) -> tuple[list[dict[str, Any]], int | None]:
    """A window of `limit` sequences, of which expired ones are missing, and where the next one ends."""
    state = (await broker.api(f"STREAM.INFO.{DLQ}"))["state"]
    first, end = state["first_seq"], state["last_seq"] + 1
    end = end if before is None else min(end, before)
    start = max(first, end - limit)
    letters: list[dict[str, Any]] = []
    at, last = start, False
    while at < end and not last:
        stored, last = await page(broker, DLQ, ALL_DEAD_LETTERS, at, timeout=READ_WITHIN, size=min(limit, end - at))
        letters += [_described(one) for one in stored if one.seq < end]
        at = stored[-1].seq + 1 if stored else end
    return letters[::-1], start if start > first else None


def _described(stored: Stored) -> dict[str, Any]:
    _, component, reason, request, node, gen = stored.subject.split(".")
    body = letter_of(stored)
    about = {
        "id": stored.seq,
        "at": stored.time,
        "component": component,
        "reason": reason,
        "request": request,
        "node": node,
        "gen": int(gen),
        "nbytes": len(stored.data),
    }
    if body is None:  # a fact that does not decode (dispatcher/deadletter.py): its bytes are the letter
        return about | {"subject": stored.headers.get("Cornstalk-Subject", ""), "attempts": 1}
    return about | {"error": body.error, "attempts": body.attempts}


def letter_of(stored: Stored) -> DeadLetter | None:
    """None for a fact that does not decode: its bytes are the letter."""
    try:
        return decode(DeadLetter, stored.data)
    except (Malformed, NewerVersion):
        return None


def _item(body: DeadLetter | None) -> WorkItem | None:
    """The work item; None when it does not decode here."""
    try:
        return decode(WorkItem, body.item) if body else None
    except (Malformed, NewerVersion):
        return None


def _item_described(item: WorkItem, payload: bool) -> dict[str, Any]:
    about = {name: getattr(item, name) for name in ("lane", "tenant", "deadline", "trace", "seed", "outputs")}
    return about | {"inputs": {name: _input(value, payload) for name, value in item.inputs.items()}}


def _input(value: Any, payload: bool) -> dict[str, Any]:
    about = {"type": type(value).__name__, "nbytes": len(encode(value))}
    return about | {"value": substitute(value, _shown)} if payload else about


def _shown(extension: Extension) -> dict[str, Any]:
    fields = {name: getattr(extension, name) for name in extension.names}
    return {"kind": type(extension).__name__, **fields}


def _number(request: Request, name: str, default: int | None, most: int) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return default
    number = _whole(text)
    if number is None or not 1 <= number <= most:
        raise BadInput(f"expected a whole number from 1 to {most}, got {text[:40]!r}", name)
    return number


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
