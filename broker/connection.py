"""One connection to NATS: reconnects for ever, stores with retries, turns refusals into typed errors."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import msgspec
import nats.aio.client
import nats.errors

from broker.client import Client
from broker.discovery import MINIMUM
from broker.errors import (
    BrokerError,
    ConnectFailed,
    DeadlineExceeded,
    Disconnected,
    NoStream,
    PayloadTooLarge,
    ReadTimeout,
)
from broker.refusals import TRANSIENT, UNAVAILABLE, ApiError, refusal
from broker.requests import ConnectionLost, Message, NoResponders, Requests, send
from broker.subjects import MSG_ID, TTL
from broker.subscription import Subscription
from broker.wire import Hear

__all__ = ["Broker", "Confirmed", "Subscription"]

log = logging.getLogger(__name__)

PUBLISH_TIMEOUT: Final = 1.5
"""Seconds until an unconfirmed message is sent again."""

PING_EVERY: Final = 10.0
"""Seconds between two pings of the server; a third one that finds the first without answer ends the connection."""

HEADER_ROOM: Final = 4096
"""Bytes that headers may take of the server's max_payload."""


class Confirmed(NamedTuple):
    """A stored message."""

    seq: int
    duplicate: bool


class _PubAck(msgspec.Struct):
    seq: int = 0
    duplicate: bool = False
    error: ApiError | None = None


_pub_ack = msgspec.json.Decoder(_PubAck)


class Broker:
    """A connection shared by a whole process. Survives outages of any length; closes only on `close()`.

    `on_closed` is called when the client closes by itself (the server refused the token after a restart): a service
    sets it to end its process.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.nc = Client()
        self.js: Any = None
        self.on_closed: Callable[[], None] | None = None
        self._requests = Requests(self.nc)
        self._up = asyncio.Event()
        self._was_up = False
        self._closing = False
        self._on_reconnect: dict[object, Callable[[], Awaitable[None]]] = {}
        self._subscriptions: dict[Any, Subscription] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._logged = ("", 0.0)

    @classmethod
    async def connect(
        cls, url: str, *, name: str, token: str | None = None, timeout: float = 10.0, ping: float = PING_EVERY
    ) -> Self:
        """Connected, and JetStream answers. Raises ConnectFailed after `timeout` seconds, at once for a wrong token.

        `url`: of the servers of a cluster several, with commas between them; which of them is away does not matter.
        A server that falls silent is given up after three times `ping` seconds.
        """
        self = cls(name)
        try:
            async with asyncio.timeout(timeout):
                await self._connect(url, token, ping)
                await self._await_jetstream()
        except (TimeoutError, nats.errors.Error, OSError) as error:
            cause = self.nc.last_error or error
            await self.close()
            raise ConnectFailed(f"no NATS with JetStream at {url}: {cause or type(cause).__name__}") from error
        except BaseException:
            await self.close()
            raise
        return self

    @classmethod
    async def from_env(cls, name: str) -> Self:
        """As CORNSTALK_NATS_URL and CORNSTALK_NATS_TOKEN_FILE say. Raises ConnectFailed."""
        url, token = _address()
        return await cls.connect(url, name=name, token=token)

    async def _connect(self, url: str, token: str | None, ping: float) -> None:
        await self.nc.connect(
            url.split(","),
            name=self.name,
            token=token,
            error_cb=self._error,
            disconnected_cb=self._disconnected,
            reconnected_cb=self._reconnected,
            closed_cb=self._closed,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.03 + 0.04 * random.random(),
            connect_timeout=2,
            ping_interval=ping,
            max_outstanding_pings=2,
        )
        self.js = self.nc.jetstream(timeout=5)
        await self._requests.start()
        self._was_up = True
        self._up.set()

    async def _await_jetstream(self) -> None:
        version = self.nc.connected_server_version
        if (version.major, version.minor) < MINIMUM:
            found = f"{version.major}.{version.minor}.{version.patch}"
            raise ConnectFailed(f"the nats-server is {found}: too old, needed is {MINIMUM[0]}.{MINIMUM[1]}")
        while True:
            try:
                await self.api("INFO", timeout=2.0)
                return
            except BrokerError:
                await asyncio.sleep(0.02)

    @property
    def connected(self) -> bool:
        """False during an outage."""
        return self._up.is_set()

    @property
    def clustered(self) -> bool:
        """Whether the server is one of several: what it reads directly may then be a copy that lags behind."""
        return bool(self.nc._server_info.get("cluster"))

    async def wait_connected(self, deadline: float) -> None:
        """Raises DeadlineExceeded when the server is away until `deadline` (Unix seconds), Disconnected when closed."""
        if self.nc.is_closed:
            raise Disconnected("the connection to NATS is closed")
        if self._up.is_set():
            return
        try:
            await asyncio.wait_for(self._up.wait(), deadline - time.time())
        except TimeoutError:
            raise DeadlineExceeded("NATS was away until the deadline") from None

    def on_reconnect(self, callback: Callable[[], Awaitable[None]]) -> Callable[[], None]:
        """Has `callback` run in a task of its own after each reconnect. Returns what removes it again."""
        key = object()
        self._on_reconnect[key] = callback

        def remove() -> None:
            self._on_reconnect.pop(key, None)

        return remove

    async def publish_core(self, subject: str, data: bytes = b"", headers: dict[str, str] | None = None) -> None:
        """At most once, to whoever listens. Raises Disconnected."""
        await send(self.nc, subject, data, "", headers)

    async def subscribe_core(
        self,
        subject: str,
        callback: Callable[[Message], Awaitable[None]],
        *,
        queue: str = "",
        on_lost: Callable[[], None] | None = None,
    ) -> Subscription:
        """Calls `callback`, a coroutine function that must be quick, once for each message, in order.

        At most 8,192 messages or 16 MiB wait; beyond that they are dropped. `on_lost` is called when messages were
        dropped, and when the connection broke.
        """
        try:
            sub = await self.nc.subscribe(
                subject, queue=queue, cb=callback, pending_msgs_limit=8192, pending_bytes_limit=16 << 20
            )
        except (nats.errors.ConnectionClosedError, nats.errors.ConnectionDrainingError) as error:
            raise Disconnected("the connection to NATS is closed") from error
        return Subscription(self.nc, sub, self._subscriptions, on_lost)

    async def listen(self, subject: str, hear: Hear, *, on_lost: Callable[[], None] | None = None) -> Subscription:
        """Calls a plain function with each message as it is read. Nothing waits, so nothing is dropped.

        What is stored before this returns must be read. `on_lost` is called when the connection broke.
        """
        try:
            sub = await self.nc.listen(subject, hear)
        except (nats.errors.ConnectionClosedError, nats.errors.ConnectionDrainingError) as error:
            raise Disconnected("the connection to NATS is closed") from error
        return Subscription(self.nc, sub, self._subscriptions, on_lost)

    async def publish_stored(
        self,
        subject: str,
        data: bytes,
        *,
        deadline: float,
        msg_id: str | None = None,
        headers: dict[str, str] | None = None,
        ttl: float | None = None,
    ) -> Confirmed:
        """Stores a message. Sent again until it is confirmed, so at least once: give a `msg_id` or an expectation.

        `deadline` in Unix seconds, `ttl` in seconds (rounded up to whole ones). Raises DeadlineExceeded, NoStream,
        PayloadTooLarge, QueueFull, StorageFull, Conflict, Rejected, Disconnected.
        """
        if len(data) > self.nc.max_payload - HEADER_ROOM:
            raise PayloadTooLarge(f"{_kind(subject)}: {len(data)} bytes, at most {self.nc.max_payload - HEADER_ROOM}")
        all_headers = dict(headers or {})
        if msg_id is not None:
            all_headers[MSG_ID] = msg_id
        if ttl is not None:
            all_headers[TTL] = f"{max(1, math.ceil(ttl))}s"
        pause, late = 0.02, DeadlineExceeded
        while True:
            await self.wait_connected(deadline)
            timeout = min(PUBLISH_TIMEOUT, deadline - time.time())
            if timeout <= 0:
                raise late(f"{_kind(subject)}: not confirmed before the deadline")
            try:
                (answer,) = await self._requests.ask(subject, data, timeout, all_headers or None)
                ack = _pub_ack.decode(answer.data)
                if ack.error is None:
                    return Confirmed(ack.seq, ack.duplicate)
                if ack.error.err_code not in TRANSIENT:
                    raise refusal(_kind(subject), ack.error)
            except ReadTimeout:
                continue
            except ConnectionLost:
                pass
            except NoResponders:
                late = NoStream
            await asyncio.sleep(min(pause * (0.5 + random.random()), max(0.0, deadline - time.time())))
            pause = min(0.5, pause * 2)

    async def api(self, verb: str, body: dict[str, Any] | None = None, *, timeout: float = 5.0) -> dict[str, Any]:
        """One JetStream API request, `$JS.API.<verb>`, which must be one that may be done twice.

        Repeated when the connection breaks, and while a cluster has no leader for it. Raises ReadTimeout, Rejected,
        Disconnected.
        """
        data = msgspec.json.encode(body) if body else b""
        deadline = time.time() + timeout
        while True:
            answer = await self.ask(f"$JS.API.{verb}", data, deadline - time.time())
            reply: dict[str, Any] = msgspec.json.decode(answer.data)
            if "error" not in reply:
                return reply
            error = msgspec.convert(reply["error"], ApiError)
            if error.err_code != UNAVAILABLE:
                raise refusal(".".join(verb.split(".")[:2]), error)
            await asyncio.sleep(0.05)

    async def ask(self, subject: str, data: bytes, timeout: float) -> Message:
        """For reads: the message that answers. Repeated as `api` is. Raises ReadTimeout, Disconnected."""
        return (await self._ask_again(self._requests.ask, subject, data, timeout))[-1]

    async def ask_many(self, subject: str, data: bytes, timeout: float) -> list[Message]:
        """For reads: all messages that answer, the last one a status. As `ask`."""
        return await self._ask_again(self._requests.ask_many, subject, data, timeout)

    async def _ask_again(
        self, ask: Callable[[str, bytes, float], Awaitable[list[Message]]], subject: str, data: bytes, timeout: float
    ) -> list[Message]:
        deadline = time.time() + timeout
        while True:
            try:
                await self.wait_connected(deadline)
                return await ask(subject, data, deadline - time.time())
            except DeadlineExceeded:
                raise ReadTimeout("NATS is away") from None
            except (NoResponders, ConnectionLost):
                await asyncio.sleep(0.02)

    async def close(self) -> None:
        """Sends what is buffered, then closes. Idempotent."""
        self._closing = True
        self._up.clear()
        for task in self._tasks:
            task.cancel()
        for subscription in list(self._subscriptions.values()):
            await subscription.close()
        await self._requests.stop()
        try:
            await self.nc.close()
        except OSError:
            pass  # away: what was buffered is lost with this process

    async def _error(self, error: Exception) -> None:
        if "authorization" in str(error).lower():
            if not self._was_up:
                raise ConnectFailed(f"NATS refuses the token: {error}") from error
            self._start(self._end)
        if isinstance(error, nats.errors.SlowConsumerError) and error.sub in self._subscriptions:
            self._subscriptions[error.sub].lost()
        kind, at = self._logged
        now = time.monotonic()
        if kind != type(error).__name__ or now > at + 5.0:
            self._logged = (type(error).__name__, now)
            log.warning("nats connection of %s: %s", self.name, type(error).__name__)

    async def _disconnected(self) -> None:
        self._up.clear()
        self._requests.fail_all()
        for subscription in list(self._subscriptions.values()):
            subscription.lost()

    async def _reconnected(self) -> None:
        self._up.set()
        for callback in list(self._on_reconnect.values()):
            self._start(callback)

    async def _closed(self) -> None:
        self._up.clear()
        self._requests.fail_all()
        if not self._closing and self.on_closed is not None:
            self.on_closed()

    async def _end(self) -> None:
        """The server refuses the token for good: asking again is of no use."""
        await self.nc.close()

    def _start(self, callback: Callable[[], Awaitable[None]]) -> None:
        task = asyncio.get_running_loop().create_task(self._guarded(callback))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, callback: Callable[[], Awaitable[None]]) -> None:
        try:
            await callback()
        except Exception as error:
            log.error("a callback of connection %s raised %s", self.name, type(error).__name__)


def _address() -> tuple[str, str | None]:
    """URL and token from the environment."""
    url = os.environ.get("CORNSTALK_NATS_URL")
    if not url:
        raise ConnectFailed("CORNSTALK_NATS_URL is not set (nats://127.0.0.1:4222)")
    path = os.environ.get("CORNSTALK_NATS_TOKEN_FILE")
    if not path:
        return url, None
    try:
        return url, Path(path).read_text().strip()
    except OSError as error:
        raise ConnectFailed(f"CORNSTALK_NATS_TOKEN_FILE: {error}") from error


def _kind(subject: str) -> str:
    """First token: what it is about, without anybody's ids."""
    return subject.split(".", 1)[0]
