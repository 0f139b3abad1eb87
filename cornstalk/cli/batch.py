"""`cornstalk batch status | results | cancel`: what is stored of batch jobs, read from NATS."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cornstalk.batch import KEPT_DAYS, Begun, encoding_of
from cornstalk.cli.console import UNBOUNDED, stdout
from cornstalk.cli.deadletters import age
from cornstalk.cli.errors import CliError
from cornstalk.cli.nats import connected
from cornstalk.messages import decode

if TYPE_CHECKING:
    from broker.connection import Broker
    from broker.reads import Stored

WATCH_EVERY: Final = 1.0
CANCEL_WAIT: Final = 10.0
"""Seconds that storing a cancel may take."""
READ_WAIT: Final = 5.0

Found = dict[str, Any]


async def status(store: Path | None, job: str | None, as_json: bool, watched: bool) -> None:
    """One job, or all that have begun. Raises CliError."""
    async with connected(store) as broker:
        if job is None:
            _print_jobs([found async for found in _jobs(broker)], as_json)
            return
        found = await _found(broker, job)
        while watched and found["status"] == "running":
            print(json.dumps(found) if as_json else _line(found), flush=True)
            told = found
            while found == told:
                await asyncio.sleep(WATCH_EVERY)
                found = await _found(broker, job)
        print(json.dumps(found) if as_json else _line(found))


async def results(store: Path | None, job: str, follow: bool) -> None:
    """One JSON object a line: in the order of the rows, or as they come until the job is over. Raises CliError."""
    async with connected(store) as broker:
        await _found(broker, job)
        if follow:
            async for _, stored in _as_they_come(broker, job):
                print(json.dumps(await _result(broker, stored)), flush=True)
            return
        for _, stored in sorted([found async for found in _rows(broker, job)], key=lambda found: found[0]):
            print(json.dumps(await _result(broker, stored)))


async def cancel(store: Path | None, job: str) -> None:
    """Stores the cancel. A job that is over stays as it ended. Raises CliError."""
    from broker.subjects import batch_word

    async with connected(store) as broker:
        found = await _found(broker, job)
        if found["status"] == "running":
            await broker.publish_stored(batch_word(job, "cancel"), b"", deadline=time.time() + CANCEL_WAIT)
        print("cancelling" if found["status"] == "running" else found["status"])


async def _found(broker: Broker, job: str) -> Found:
    """The summary of a job, or its progress with status `running`."""
    from broker.reads import last_stored
    from broker.subjects import BATCH, batch_word, token

    try:
        words = (batch_word(token(job), "summary"), batch_word(job, "progress"))
    except ValueError as error:
        raise CliError(f"{job[:60]!r} is no job", why=str(error)) from error
    for word in words:
        if (stored := await last_stored(broker, BATCH, word)) is not None:
            return {"status": "running", **_plain(stored.data)}
    why = f"none has begun under this id, or it is over {KEPT_DAYS} days old"
    raise CliError(f"no job {job}", why=why, next="cornstalk batch status  (lists them)")


async def _jobs(broker: Broker) -> AsyncIterator[Found]:
    """All jobs, oldest first."""
    from broker.reads import pages
    from broker.subjects import ALL_BATCH_BEGUN, BATCH

    async for stored in pages(broker, BATCH, ALL_BATCH_BEGUN):
        begun, job = decode(Begun, stored.data), stored.subject.split(".")[2]
        about = {"app": begun.app, "tenant": begun.tenant, "priority": begun.priority, "begun_at": begun.begun_at}
        try:
            yield {**about, **(await _found(broker, job))}
        except CliError:
            yield {**about, "job": job, "status": "running", "rows": begun.total}  # nothing is told of it yet


async def _rows(broker: Broker, job: str) -> AsyncIterator[tuple[int, Stored]]:
    from broker.reads import pages
    from broker.subjects import BATCH, batch_results

    async for stored in pages(broker, BATCH, batch_results(job)):
        if (row := stored.subject.rpartition(".")[2]).isdigit():
            yield int(row), stored


async def _as_they_come(broker: Broker, job: str) -> AsyncIterator[tuple[int, Stored]]:
    from broker.reads import stored_at
    from broker.subjects import BATCH, batch_results
    from broker.tail import Tail, as_it_is

    tail = Tail(broker, BATCH, batch_results(job), 0, as_it_is)
    try:
        while (stored := await tail.next()) is not None:
            word = stored.subject.rpartition(".")[2]
            if word == "summary":
                return
            if word.isdigit() and (whole := await stored_at(broker, BATCH, stored.seq)) is not None:
                yield int(word), whole  # what is heard live has no body
    finally:
        await tail.close()


async def _result(broker: Broker, stored: Stored) -> Found:
    """A result as JSON, with its response whole."""
    from broker.reads import last_stored_until
    from broker.subjects import BATCH

    found: Found = _plain(stored.data)
    if subjects := found.pop("parts", []):
        parts = [await last_stored_until(broker, BATCH, part, time.time() + READ_WAIT) for part in subjects]
        data = b"".join(part.data for part in parts if part is not None)
        found["response"] = _plain(data, encoding_of(stored.data))
    return found


def _plain(data: bytes, encoding: str = "") -> Any:
    """What a gateway told, in JSON values."""
    if (encoding or encoding_of(data)) == "json":
        return msgspec.json.decode(data)
    return msgspec.to_builtins(msgspec.msgpack.decode(data), str_keys=True)


def _line(found: Found) -> str:
    counts = ", ".join(f"{found[name]} {name}" for name in ("done", "failed", "cancelled", "expired") if found[name])
    text = f"{found['status']}: {counts or 'none'} of {found['rows']} rows"
    return f"{text}: {found['error']['message']}" if found.get("error") else text


def _print_jobs(found: list[Found], as_json: bool) -> None:
    if as_json:
        print(json.dumps({"jobs": found}))
        return
    if not found:
        print("no jobs")
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("JOB", "APP", "TENANT", "PRIORITY", "AGE", "STATUS", "ROWS", "DONE", "FAILED"):
        table.add_column(
            name, no_wrap=True, justify="right" if name in ("PRIORITY", "ROWS", "DONE", "FAILED") else "left"
        )
    for job in found:
        numbers = [str(job.get(name, 0)) for name in ("rows", "done", "failed")]
        about = (job["job"], job["app"], job["tenant"], str(job["priority"]), age(time.time() - job["begun_at"]))
        table.add_row(*about, job["status"], *numbers)
    stdout(UNBOUNDED).print(table)
