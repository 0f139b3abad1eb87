"""Requests over one connection: one inbox for all, typed time-outs, and a lost connection fails what is under way."""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol

import nats.errors

from broker.errors import Disconnected, ReadTimeout

STATUS: Final = "Status"


class Message(Protocol):
    """A message as it arrives."""

    subject: str
    reply: str
    data: bytes
    headers: dict[str, str] | None


class ConnectionLost(Exception):
    """Raised in this package when the connection broke before the answer: ask again."""


class NoResponders(Exception):
    """Raised in this package when nobody serves the subject: no such stream or consumer, or a server that starts."""


class _Answer:
    """Collects the messages that answer one request."""

    __slots__ = ("future", "many", "messages")

    def __init__(self, future: asyncio.Future[Message], many: bool) -> None:
        self.future = future
        self.messages: list[Message] = []
        self.many = many


class Requests:
    """Asks and waits. Bounded by its callers: each has at most one entry per request under way."""

    def __init__(self, nc: Any) -> None:
        self._nc = nc
        self._under_way: dict[str, _Answer] = {}
        self._count = 0
        self._sub: Any = None
        self._prefix = nc.new_inbox()

    async def start(self) -> None:
        self._sub = await self._nc.take(f"{self._prefix}.*", self._on_message)

    async def stop(self) -> None:
        """Whoever still waits is told that the connection is lost. Idempotent."""
        self.fail_all()
        sub, self._sub = self._sub, None
        if sub is not None and not self._nc.is_closed:
            await sub.unsubscribe()

    async def ask(
        self, subject: str, data: bytes, timeout: float, headers: dict[str, str] | None = None
    ) -> list[Message]:
        """The one answer. Raises ReadTimeout, NoResponders, ConnectionLost, Disconnected."""
        return await self._ask(subject, data, timeout, headers, many=False)

    async def ask_many(self, subject: str, data: bytes, timeout: float) -> list[Message]:
        """All answers, the last one being the status message that ends them. Raises as `ask`."""
        return await self._ask(subject, data, timeout, None, many=True)

    async def _ask(
        self, subject: str, data: bytes, timeout: float, headers: dict[str, str] | None, many: bool
    ) -> list[Message]:
        loop = asyncio.get_running_loop()
        self._count += 1
        key = str(self._count)
        answer = self._under_way[key] = _Answer(loop.create_future(), many)
        timer = loop.call_later(timeout, _fail, answer.future, ReadTimeout(f"no answer within {timeout:.3g} s"))
        try:
            await self._publish(subject, data, f"{self._prefix}.{key}", headers)
            answer.messages.append(await answer.future)
        finally:
            timer.cancel()
            del self._under_way[key]
        last = answer.messages[-1]
        if last.headers and last.headers.get(STATUS) == "503" and not last.data:
            raise NoResponders(subject)
        return answer.messages

    async def _publish(self, subject: str, data: bytes, reply: str, headers: dict[str, str] | None) -> None:
        """Who waits for an answer can wait for the connection too: a full buffer means that it is lost."""
        try:
            await _publish(self._nc, subject, data, reply, headers)
        except nats.errors.OutboundBufferLimitError as error:
            raise ConnectionLost from error

    def _on_message(self, message: Message) -> None:
        answer = self._under_way.get(message.subject[len(self._prefix) + 1 :])
        if answer is None or answer.future.done():
            return
        if answer.many and not (message.headers and STATUS in message.headers):
            answer.messages.append(message)
        else:
            answer.future.set_result(message)

    def fail_all(self) -> None:
        """The connection broke: whoever waits asks again, instead of waiting for an answer that was lost."""
        for answer in self._under_way.values():
            _fail(answer.future, ConnectionLost())


def _fail(future: asyncio.Future[Message], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


async def send(nc: Any, subject: str, data: bytes, reply: str = "", headers: dict[str, str] | None = None) -> None:
    """Publishes; during an outage the client buffers up to 2 MiB. Raises Disconnected."""
    try:
        await _publish(nc, subject, data, reply, headers)
    except nats.errors.OutboundBufferLimitError as error:
        raise Disconnected("NATS is away and the outgoing buffer is full") from error


async def _publish(nc: Any, subject: str, data: bytes, reply: str, headers: dict[str, str] | None) -> None:
    try:
        await nc.publish(subject, data, reply=reply, headers=headers)
    except (nats.errors.ConnectionClosedError, nats.errors.ConnectionDrainingError) as error:
        raise Disconnected("the connection to NATS is closed") from error
