"""Reads of a stream: the last of a subject through the leader; many messages in one direct get; pages."""

from __future__ import annotations

import base64
import time
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import Struct

from broker.connection import Broker
from broker.errors import DeadlineExceeded, ReadTimeout, Rejected
from broker.refusals import NO_MESSAGE
from broker.requests import STATUS, Message
from broker.wire import read_headers

PAGE: Final = 256
"""Messages of one page."""

PAGE_BYTES: Final = 4 << 20
"""A page ends after the message that passes this."""


_STREAM_GET_TIMEOUT: Final = 2.0


class Stored(Struct, frozen=True):
    """A message as it is stored."""

    subject: str
    seq: int
    data: bytes
    time: float  # when it was stored, Unix seconds
    headers: dict[str, str] = {}


class TooManySubjects(Exception):
    """Raised in this package when a read spans more subjects than the server answers at once (1,024): read pages."""


async def last_stored(
    broker: Broker, stream: str, subject: str, *, timeout: float = _STREAM_GET_TIMEOUT
) -> Stored | None:
    """The newest message of a subject, read through the leader: never stale. Raises ReadTimeout."""
    return await _leader_get(broker, stream, {"last_by_subj": subject}, timeout)


async def last_stored_until(broker: Broker, stream: str, subject: str, deadline: float) -> Stored | None:
    """As `last_stored`, repeated through an outage. Raises DeadlineExceeded at `deadline` (Unix seconds)."""
    while True:
        left = deadline - time.time()
        if left <= 0:
            raise DeadlineExceeded(f"{stream} could not be read before the deadline")
        try:
            return await last_stored(broker, stream, subject, timeout=min(left, _STREAM_GET_TIMEOUT))
        except ReadTimeout:
            continue


async def stored_at(broker: Broker, stream: str, seq: int, *, timeout: float = _STREAM_GET_TIMEOUT) -> Stored | None:
    """The message with this sequence, read through the leader. Raises ReadTimeout."""
    return await _leader_get(broker, stream, {"seq": seq}, timeout)


async def _leader_get(broker: Broker, stream: str, body: dict[str, Any], timeout: float) -> Stored | None:
    try:
        message = (await broker.api(f"STREAM.MSG.GET.{stream}", body, timeout=timeout))["message"]
    except Rejected as error:
        if error.err_code == NO_MESSAGE:
            return None
        raise
    data = base64.b64decode(message.get("data", ""))
    return Stored(message["subject"], message["seq"], data, _unix(message["time"]), _headers(message.get("hdrs", "")))


async def direct_last(broker: Broker, stream: str, subject: str, *, timeout: float) -> Stored | None:
    """The newest message of a subject, maybe not fresh: for what never changes. Raises ReadTimeout.

    What a replica does not have yet, the leader has.
    """
    body = msgspec.json.encode({"last_by_subj": subject})
    message = await broker.ask(f"$JS.API.DIRECT.GET.{stream}", body, timeout)
    match _headers_of(message).get(STATUS):
        case None:
            return stored_of(message)
        case "404":
            return await last_stored(broker, stream, subject, timeout=timeout)
        case code:
            raise ReadTimeout(f"{stream} answers {code} to a read")


async def multi_last(broker: Broker, stream: str, filter_subject: str, *, timeout: float) -> tuple[list[Stored], int]:
    """The newest message of each subject that matches, ascending by sequence, and up to which sequence that holds.

    A prefix of the stream, maybe not a fresh one; ([], 0) when nothing matches. Raises ReadTimeout, TooManySubjects.
    """
    answers = await _direct(broker, stream, {"multi_last": [filter_subject]}, timeout)
    status = _headers_of(answers[-1])
    match status[STATUS]:
        case "404":
            return [], 0
        case "413":
            raise TooManySubjects(filter_subject)
        case "204" if int(status.get("Nats-Num-Pending", 0)) == 0:
            stored = [stored_of(message) for message in answers[:-1]]
            return stored, int(status["Nats-UpTo-Sequence"])
        case "204":
            raise TooManySubjects(filter_subject)
        case code:
            raise ReadTimeout(f"{stream} answers {code} to a read")


async def page(
    broker: Broker, stream: str, filter_subject: str, start: int, *, timeout: float, size: int = PAGE
) -> tuple[list[Stored], bool]:
    """Up to `size` stored messages from sequence `start` on, ascending, and whether there were no more.

    Raises ReadTimeout.
    """
    body = {"seq": max(1, start), "next_by_subj": filter_subject, "batch": size, "max_bytes": PAGE_BYTES}
    answers = await _direct(broker, stream, body, timeout)
    status = _headers_of(answers[-1])
    match status[STATUS]:
        case "404":
            return [], True
        case "204":
            stored = [stored_of(message) for message in answers[:-1]]
            return stored, int(status.get("Nats-Num-Pending", 0)) == 0
        case code:
            raise ReadTimeout(f"{stream} answers {code} to a read")


async def pages(
    broker: Broker, stream: str, filter_subject: str, *, start: int = 1, timeout: float = 2.0
) -> AsyncIterator[Stored]:
    """Every stored message that matches, ascending by sequence, page by page. Raises ReadTimeout."""
    last = False
    while not last:
        stored, last = await page(broker, stream, filter_subject, start, timeout=timeout)
        for message in stored:
            yield message
        if stored:
            start = stored[-1].seq + 1


async def _direct(broker: Broker, stream: str, body: dict[str, Any], timeout: float) -> list[Message]:
    return await broker.ask_many(f"$JS.API.DIRECT.GET.{stream}", msgspec.json.encode(body), timeout)


def stored_of(message: Message) -> Stored:
    """What a direct get or a republished message carries."""
    headers = _headers_of(message)
    return Stored(
        headers["Nats-Subject"],
        int(headers["Nats-Sequence"]),
        message.data,
        _unix(headers.get("Nats-Time-Stamp", "")),
        headers,
    )


def headers_of(block: bytes) -> dict[str, str]:
    """All headers of a block as it came, without a status."""
    return read_headers(block.partition(b"\r\n")[2])


def place_of(block: bytes) -> tuple[int, int]:
    """From the header block of a republished message: its sequence, and that of the one before on its subject or 0.

    Raises ValueError when it is not one.
    """
    return _number(block, b"\r\nNats-Sequence: "), _number(block, b"\r\nNats-Last-Sequence: ")


def _number(block: bytes, name: bytes) -> int:
    return int(block.partition(name)[2].partition(b"\r")[0])


def _headers_of(message: Message) -> dict[str, str]:
    return message.headers or {}


def _unix(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp() if stamp else 0.0


def _headers(encoded: str) -> dict[str, str]:
    lines = base64.b64decode(encoded).decode("utf-8", "replace").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if ":" in line)
    return {name: value.strip() for name, _, value in pairs}
