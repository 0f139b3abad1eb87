"""Batch jobs: what clients publish to `batch.submit.<app>`, and what they read under `batch.result.<job>.`.

A client needs a NATS library and nothing of ours: messages are JSON or msgpack objects, told apart by their first byte,
and are answered in kind. docs/batch.md is the guide.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Raw, Struct

from cornstalk.errors import BadInput
from cornstalk.ids import hashed_id
from cornstalk.messages import LONGEST_DEADLINE, Encoding, Message, NewerVersion, Status, Upload, Usage

KEPT_DAYS: Final = 3
"""Days that submissions and results are kept from when they were stored."""
ROWS: Final = 50_000
"""Rows of one job."""


Given = tuple[Encoding, Raw]
"""A row as it came."""


def job_id(tenant: str, app: str, key: str) -> str:
    """The id of the job that an idempotency key stands for."""
    return hashed_id(tenant, app, key)


def row_request(job: str, row: int) -> str:
    """The id of the request that runs a row: starting a row twice is starting it once."""
    return hashed_id(job, str(row))


class Submission(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """batch.submit.<app>: rows of a job. A job in several messages has its options in the one that is `last`."""

    v: int = 1
    idempotency_key: Annotated[str, Meta(min_length=1, max_length=255)]
    tenant: str = "default"
    row: Raw = Raw()  # one row, or:
    rows: list[Raw] = []
    first: Annotated[int, Meta(ge=0, lt=ROWS)] = 0  # number of the first row of this message
    last: bool = True
    priority: Annotated[int, Meta(ge=-100, le=100)] = 0  # higher first, among the jobs of an app
    # seconds after the last message was stored
    deadline: Annotated[float, Meta(gt=0, le=LONGEST_DEADLINE)] = LONGEST_DEADLINE

    def inputs(self) -> Sequence[Raw]:
        """Its rows, each as it came."""
        return [self.row] if len(self.row) else self.rows


class Named(Struct, frozen=True):
    """As much of a submission as says which job it is for."""

    idempotency_key: str
    tenant: str = "default"
    v: int = 1


class Part(Message, frozen=True, kw_only=True):
    """batch.result.<job>.job.<first>: one message of a job was taken."""

    first: int
    count: int
    last: bool
    seq: int  # of the message in BATCH
    digest: str  # of its rows


class Begun(Message, frozen=True, kw_only=True):
    """batch.result.<job>.job.begun: all messages are there. From here nothing of the job changes but its results."""

    app: str
    app_version: str
    tenant: str
    priority: int
    deadline: float  # Unix seconds
    encoding: Encoding
    trace: str  # W3C traceparent of the client; empty: each row has one of its own
    total: int
    parts: tuple[tuple[int, int, int], ...]  # (first, count, seq in BATCH), ascending
    begun_at: float


class Counts(Struct, frozen=True, kw_only=True):
    """Rows of a job by how they ended; the rest have not."""

    v: int = 1
    job: str
    rows: int
    done: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0


class Result(Struct, frozen=True, kw_only=True):
    """batch.result.<job>.<row>: how a row ended. Stored once."""

    v: int = 1
    job: str
    row: int
    status: Status
    response: Any = None
    error: Any = None
    request: str = ""
    usage: Usage = Usage()
    times: dict[str, float] = {}
    parts: tuple[str, ...] = ()  # subjects of messages that hold the response, where it does not fit in here


class Progress(Counts, frozen=True, kw_only=True):
    """batch.result.<job>.progress: the newest one only."""


class Summary(Counts, frozen=True, kw_only=True):
    """batch.result.<job>.summary: the job is over. Stored once, after every result."""

    status: Status  # done: every row has ended, each as its result says; failed: none ran
    usage: Usage = Usage()
    error: Any = None
    times: dict[str, float] = {}


class Refusal(Struct, frozen=True, kw_only=True):
    """batch.result.<job>.refused: the message `seq` was not taken. Nothing of it is kept, the key may be used again.

    Of a message that does not say which job it is for: batch.result.unreadable.<seq>.
    """

    v: int = 1
    job: str
    seq: int
    error: Any


_DECODERS: Final[dict[Encoding, Any]] = {"json": msgspec.json.Decoder, "msgpack": msgspec.msgpack.Decoder}
_submission = {encoding: make(Submission) for encoding, make in _DECODERS.items()}
_named = {encoding: make(Named) for encoding, make in _DECODERS.items()}


def encoding_of(data: bytes) -> Encoding:
    """JSON that is an object begins with a brace, maybe after blanks, and no msgpack map with any of these bytes."""
    return "json" if data[:1] in (b"{", b" ", b"\n", b"\r", b"\t") else "msgpack"


def named(data: bytes) -> Named | None:
    """Which job a message is for, whatever else is wrong with it; None if it does not say."""
    try:
        found: Named = _named[encoding_of(data)].decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    return found


def submission(data: bytes) -> Submission:
    """A message of a client. Raises BadInput that names the field, NewerVersion."""
    encoding = encoding_of(data)
    try:
        found: Submission = _submission[encoding].decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        about = named(data)
        if about is not None and about.v > 1:
            raise NewerVersion(f"a submission has version {about.v}, this release reads 1") from error
        message, _, field = str(error).partition(" - at `$.")
        raise BadInput(message if about is not None else f"{encoding}: {message}", field.rstrip("`")) from error
    if found.v > 1:
        raise NewerVersion(f"a submission has version {found.v}, this release reads 1")
    if len(found.row) and found.rows:
        raise BadInput("expected `row` or `rows`, got both", "row")
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Upload):
        return {"upload": value.digest}  # as a request may name it
    raise TypeError(f"a {type(value).__name__} cannot be told to a client")


_encode = {
    "json": msgspec.json.Encoder(enc_hook=_plain).encode,
    "msgpack": msgspec.msgpack.Encoder(enc_hook=_plain).encode,
}


def encoded(value: Any, encoding: Encoding) -> bytes:
    """As a client gets it: bytes are base64 in JSON, themselves in msgpack. Raises TypeError for what has no form."""
    return _encode[encoding](value)
