"""`cornstalk batch submit`: a file of JSON lines becomes the messages of a job."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from cornstalk.batch import ROWS, Refusal, job_id
from cornstalk.cli.console import note
from cornstalk.cli.errors import USAGE, CliError
from cornstalk.cli.nats import connected

if TYPE_CHECKING:
    from broker.connection import Broker

MESSAGE: Final = 512 * 1024
"""Bytes of rows in one message; a row that is longer goes alone."""
STORE_WAIT: Final = 20.0
"""Seconds that storing a message may take."""
BEGIN_WAIT: Final = 10.0
"""Seconds in which a gateway may say that the job begins, or why it does not."""


@dataclass(frozen=True)
class Options:
    """Flags of `batch submit`."""

    file: Path
    app: str
    key: str
    tenant: str
    priority: int
    deadline: float | None


async def submit(store: Path | None, options: Options) -> None:
    """Prints the id of the job once it has begun, or is stored to begin later. Raises CliError."""
    from broker.subjects import batch_submit, token

    for name, text in (("app", options.app), ("tenant", options.tenant)):
        try:
            token(text)
        except ValueError as error:
            raise CliError(f"--{name}: {error}", exit_code=USAGE) from error
    rows = _rows(options.file)
    job = job_id(options.tenant, options.app, options.key)
    async with connected(store) as broker:
        seqs = []
        for message in _messages(rows, options):
            stored = await broker.publish_stored(batch_submit(options.app), message, deadline=time.time() + STORE_WAIT)
            seqs.append(stored.seq)
        begun = await _begun(broker, job, seqs)
    print(job)
    if begun:
        note(f"{len(rows)} rows: cornstalk batch status {job}", style="dim")
    else:
        print("stored, but no gateway has taken it yet", file=sys.stderr)


def _rows(file: Path) -> list[msgspec.Raw]:
    """The lines, checked to be JSON; what else is wrong with one is the failure of its row."""
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise CliError(f"cannot read {file}", why=error.strerror or "", exit_code=USAGE) from error
    rows = []
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            rows.append(msgspec.json.decode(line, type=msgspec.Raw))
        except (msgspec.MsgspecError, RecursionError) as error:
            raise CliError(f"{file}, line {number}: {error}", next="one JSON object a line", exit_code=USAGE) from error
    if not 0 < len(rows) <= ROWS:
        raise CliError(f"{file} has {len(rows)} rows", why=f"a job has 1 to {ROWS}", exit_code=USAGE)
    return rows


def _messages(rows: list[msgspec.Raw], options: Options) -> Iterator[bytes]:
    first = 0
    while first < len(rows):
        end, size = first + 1, len(rows[first])
        while end < len(rows) and size + len(rows[end]) <= MESSAGE:
            size, end = size + len(rows[end]), end + 1
        body = {
            "idempotency_key": options.key,
            "tenant": options.tenant,
            "priority": options.priority,
            "first": first,
            "last": end == len(rows),
            "rows": rows[first:end],
        }
        yield msgspec.json.encode(body | ({"deadline": options.deadline} if options.deadline is not None else {}))
        first = end


async def _begun(broker: Broker, job: str, seqs: list[int]) -> bool:
    """Whether a gateway says that the job has begun. Raises CliError if it says that it refuses it."""
    from broker.reads import last_stored
    from broker.subjects import BATCH, batch_word

    end = time.monotonic() + BEGIN_WAIT
    while time.monotonic() < end:
        refused = await last_stored(broker, BATCH, batch_word(job, "refused"))
        if refused is not None and (said := msgspec.json.decode(refused.data, type=Refusal)).seq in seqs:
            error = said.error
            raise CliError(error["message"], why=f"{error['code']}; nothing of job {job} runs")
        for word in ("summary", "progress"):
            if await last_stored(broker, BATCH, batch_word(job, word)) is not None:
                return True
        await asyncio.sleep(0.05)
    return False
