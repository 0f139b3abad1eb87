"""Pulls from a work queue with credits, for ever: survives restarts, lost pulls, deleted and recreated consumers."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final

from broker.connection import Broker, Subscription
from broker.delivery import Delivery
from broker.errors import BrokerError
from broker.orphans import REUNION, Orphans
from broker.requests import STATUS, Message, send
from cornstalk.loops import forever

__all__ = ["Delivery", "PullLoop"]

log = logging.getLogger(__name__)

HAND_BACK_AFTER_ERROR: Final = 1.0
"""Seconds after which an item whose handler raised comes again."""


class _Pull:
    """One pull request at a time, on an inbox of its own, so that what answers it is known. Reused once it ended."""

    __slots__ = ("expires", "heard", "inbox", "remaining", "subscription")

    def __init__(self, inbox: str) -> None:
        self.inbox = inbox
        self.subscription: Subscription | None = None
        self.remaining = 0
        self.heard = 0.0
        self.expires = 0.0

    def begin(self, remaining: int, expires: float) -> None:
        self.remaining = remaining
        self.heard = time.monotonic()
        self.expires = self.heard + expires

    def is_silent(self, heartbeat: float) -> bool:
        """Beyond its limit of waiting pulls the server drops a pull that asks for heartbeats without a word."""
        now = time.monotonic()
        return self.remaining > 0 and (now > self.heard + 2 * heartbeat or now > self.expires + heartbeat)


class PullLoop:
    """Keeps up to `credits` items asked for or in handlers, and runs `handle` in a task for each delivery.

    A handler counts against the credits until it returns. What arrives over the credits, or after stop or pause, is
    handed back at once. `handle` answers its delivery itself; when it raises, the item is handed back with delay.
    Pulls anew at once after a reconnect, a deleted consumer, any refusal, and two missed heartbeats; looks for orphans
    then, and when it starts or resumes.
    """

    def __init__(
        self,
        broker: Broker,
        stream: str,
        consumer: str,
        handle: Callable[[Delivery], Awaitable[None]],
        *,
        credits: int,
        expires: float = 30.0,
        heartbeat: float = 2.0,
    ) -> None:
        self._broker = broker
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._what = f"{stream}.{consumer}"
        self._handle = handle
        self._credits = credits
        self._expires = expires
        self._heartbeat = heartbeat
        self._pulls: list[_Pull] = []
        self._handlers: dict[asyncio.Task[None], Delivery] = {}
        self._resting: set[int] = set()  # stream sequences of what was handed back with a delay that is not over
        self.orphans = Orphans(broker, stream, consumer, self._held)
        self._leaving: set[asyncio.Task[None]] = set()
        self._paused = False
        self._kick = asyncio.Event()
        self._withdraw = False
        self._missed = False  # a pull was given up, and nothing has been heard of the server since
        self._quiet_until = 0.0
        self._failures = 0
        self._task: asyncio.Task[None] | None = None
        self._remove: Callable[[], None] | None = None

    @property
    def running(self) -> int:
        """Handlers that have not returned."""
        return len(self._handlers)

    @property
    def credits(self) -> int:
        return self._credits

    def _held(self) -> list[int]:
        return [*(delivery.stream_seq for delivery in self._handlers.values()), *self._resting]

    async def start(self) -> None:
        """Begins to pull. A consumer that does not exist yet is waited for."""
        self._remove = self._broker.on_reconnect(self._on_reconnect)
        self._task = asyncio.create_task(forever(self._round, f"pull {self._what}"))
        self._kick.set()
        await self.orphans.start()

    def set_credits(self, credits: int) -> None:
        """At once; with fewer credits the pulls that are too many are withdrawn."""
        self._withdraw = self._withdraw or credits < self._credits
        self._credits = credits
        self._kick.set()

    async def pause(self) -> None:
        """Withdraws the pulls; returns when nothing more will be handled that has not begun."""
        self._paused = True
        self._give_up(list(self._pulls))
        await asyncio.gather(*self._leaving)

    async def resume(self) -> None:
        self._paused = False
        self._kick.set()
        self.orphans.look()

    async def stop(self) -> None:
        """Pause for good. Running handlers go on; `join` waits for them."""
        if self._remove is not None:
            self._remove()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.pause()
        if not self._handlers:
            await self.orphans.close()

    async def join(self, timeout: float) -> int:
        """Waits for running handlers; how many still run after `timeout` seconds."""
        if self._handlers:
            await asyncio.wait(self._handlers, timeout=timeout)
        await self.orphans.close()
        return len(self._handlers)

    async def _round(self) -> None:
        try:
            async with asyncio.timeout(self._heartbeat / 2):
                await self._kick.wait()
        except TimeoutError:
            pass
        self._kick.clear()
        if self._paused or not self._broker.connected:
            return
        try:
            silent = [pull for pull in self._pulls if pull.is_silent(self._heartbeat)]
            self._missed = self._missed or bool(silent)
            if self._withdraw and self._asked() > max(0, self._credits - len(self._handlers)):
                silent = self._pulls
            self._give_up(list(silent))
            self._withdraw = False
            await self._ask()
        except BrokerError as error:
            log.warning("pull %s: %s", self._what, type(error).__name__)

    def _asked(self) -> int:
        return sum(pull.remaining for pull in self._pulls)

    async def _ask(self) -> None:
        free = self._credits - len(self._handlers) - self._asked()
        if free <= 0 or (self._asked() and free < self._credits // 4):
            return
        wait = self._quiet_until - time.monotonic()
        if wait > 0:
            asyncio.get_running_loop().call_later(wait, self._kick.set)
            return
        pull = next((pull for pull in self._pulls if pull.remaining == 0), None) or await self._new_pull()
        if self._paused or pull not in self._pulls:
            return
        pull.begin(free, self._expires)
        request = b'{"batch":%d,"expires":%d,"idle_heartbeat":%d}' % (
            free,
            int(self._expires * 1e9),
            int(self._heartbeat * 1e9),
        )
        await send(self._broker.nc, self._next, request, reply=pull.inbox)

    async def _new_pull(self) -> _Pull:
        pull = _Pull(self._broker.nc.new_inbox())

        async def receive(message: Message) -> None:
            status = message.headers.get(STATUS) if message.headers and not message.reply else None
            if status is None:
                await self._received(pull, message)
            elif pull.remaining > 0:
                self._told(pull, status)

        pull.subscription = await self._broker.subscribe_core(pull.inbox, receive)
        self._pulls.append(pull)
        return pull

    async def _received(self, pull: _Pull, message: Message) -> None:
        self._hear(pull)
        pull.remaining = max(0, pull.remaining - 1)
        self._failures = 0
        delivery = Delivery(self._broker, message)
        if self._paused or len(self._handlers) >= self._credits:
            await delivery.nak(0)
            return
        task = asyncio.create_task(self._guarded(delivery))
        self._handlers[task] = delivery
        task.add_done_callback(self._returned)

    def _told(self, pull: _Pull, status: str) -> None:
        self._hear(pull)
        if status == "100":
            return
        pull.remaining = 0
        if status != "408":  # the ordinary end of a pull; anything else may repeat at once
            if status not in ("409", "503"):
                log.warning("pull %s: the server answers %s", self._what, status)
            self._failures += 1
            pause = min(0.5, 0.01 * 2 ** min(self._failures, 6)) * (0.5 + random.random())
            self._quiet_until = time.monotonic() + pause
        self._kick.set()

    def _hear(self, pull: _Pull) -> None:
        pull.heard = time.monotonic()
        if self._missed:  # what the server sent to the pull that was given up is nobody's
            self._missed = False
            self.orphans.look(REUNION)

    async def _guarded(self, delivery: Delivery) -> None:
        try:
            await self._handle(delivery)
        except Exception as error:
            log.error("handler of %s raised %s; the item comes again", self._what, type(error).__name__)
            await delivery.nak(HAND_BACK_AFTER_ERROR)

    def _returned(self, task: asyncio.Task[None]) -> None:
        delivery = self._handlers.pop(task)
        if delivery.delay > 0:
            self._resting.add(delivery.stream_seq)
            asyncio.get_running_loop().call_later(delivery.delay, self._resting.discard, delivery.stream_seq)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("handing back to %s: %s", self._what, type(error).__name__)
        self._kick.set()

    async def _on_reconnect(self) -> None:
        self._quiet_until = 0.0
        self._failures = 0
        self._give_up(list(self._pulls))
        self._kick.set()
        self.orphans.look(REUNION)

    def _give_up(self, pulls: list[_Pull]) -> None:
        """The server drops a pull with its inbox; what it had sent before is still received."""
        for pull in pulls:
            self._pulls.remove(pull)
            if pull.subscription is not None:
                task = asyncio.create_task(pull.subscription.drain())
                self._leaving.add(task)
                task.add_done_callback(self._leaving.discard)
