"""A client of batch jobs that has nats-py and msgpack, and nothing of ours."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

import msgpack
import nats
from nats.js.api import ConsumerConfig, DeliverPolicy

from broker.server import Server

SILENCE: Final = 2.0


def job_id(app: str, key: str, tenant: str = "default") -> str:
    return hashlib.blake2b(f"{tenant}\0{app}\0{key}".encode(), digest_size=16).hexdigest()


@dataclass
class Heard:
    """What a consumer of a job's results has got."""

    last: int = 0
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    words: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def word(self, name: str) -> dict[str, Any] | None:
        return next((body for word, body in reversed(self.words) if word == name), None)

    def statuses(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for row in self.rows.values():
            found[row["status"]] = found.get(row["status"], 0) + 1
        return found


class Client:
    """`async with`."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def __aenter__(self) -> Self:
        self.nc = await nats.connect(self._server.url, token=self._server.token, max_reconnect_attempts=-1)
        self.js = self.nc.jetstream()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.nc.close()

    async def submit(self, app: str, *, as_json: bool = True, **body: Any) -> int:
        """The sequence of the stored message."""
        data = json.dumps(body).encode() if as_json else msgpack.packb(body)
        return (await self.js.publish(f"batch.submit.{app}", data)).seq

    async def cancel(self, job: str) -> None:
        await self.js.publish(f"batch.result.{job}.cancel", b"")

    async def hear(self, job: str, until: str = "summary", within: float = 60.0) -> Heard:
        """Everything from the beginning on, to the first word `until`, by a consumer of its own.

        A consumer that says nothing for a while is made anew from where it was: the server may have died.
        """
        heard = Heard()
        end = time.monotonic() + within
        while heard.word(until) is None:
            assert time.monotonic() < end, f"no {until} within {within} s: {heard.statuses()} {heard.words}"
            try:
                await self._hear(job, heard, until)
            except (TimeoutError, nats.errors.Error):
                continue
        return heard

    async def _hear(self, job: str, heard: Heard, until: str) -> None:
        start = ConsumerConfig(deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=heard.last + 1)
        subscription = await self.js.subscribe(f"batch.result.{job}.*", ordered_consumer=True, config=start)
        try:
            while heard.word(until) is None:
                message = await subscription.next_msg(timeout=SILENCE)
                heard.last = message.metadata.sequence.stream
                self._take(heard, message.subject.rpartition(".")[2], message.data)
        finally:
            await subscription.unsubscribe()

    @staticmethod
    def _take(heard: Heard, name: str, data: bytes) -> None:
        body = decoded(data)
        if name.isdigit():
            assert int(name) not in heard.rows, f"row {name} came twice"
            heard.rows[int(name)] = body
        else:
            heard.words.append((name, body))


def decoded(data: bytes) -> dict[str, Any]:
    if not data:
        return {}
    body: dict[str, Any] = json.loads(data) if data[:1] == b"{" else msgpack.unpackb(data)
    return body
