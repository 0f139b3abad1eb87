"""Deliveries that nobody has: they were on their way to a process that died, or to a pull that was given up.

The server gives them out again after ack_wait, for it cannot know. Those who compete for the consumer can: each says
what it holds, and whatever else counts as delivered is handed back in the name of whoever it went to. Should somebody
not answer in time, what it holds runs twice, as after ack_wait; that is slower, never wrong.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Callable, Collection
from typing import Final

import msgspec

from broker.connection import Broker, Subscription
from broker.errors import BrokerError
from broker.requests import Message, send
from broker.subjects import held_by

log = logging.getLogger(__name__)

SETTLE: Final = 0.05
"""Seconds until the server has seen that the connection of the dead is closed, and gives it nothing more. Up to three
times as long, so that one of those who heard of it looks, and the others, who hear its question, need not."""
ANSWERS: Final = 0.4
"""Seconds in which the others say what they hold, from when this process has heard its own question."""
REUNION: Final = 5.0
"""The same after an outage: the others may come back later than this process, and hold what they held."""
AGAIN: Final = 0.1
"""Seconds after which the question is repeated: who came back has not heard it, and what waited at the server, handed
back for later, may have come to somebody. What anybody ever held while one looks is no orphan."""
LOOK: Final = 1.0
"""Seconds that the server may take to say what it delivered, and to pass the question on."""
_REPEATED: Final = b"again"
"""Behind the name of who asks, from its second question on."""
NEWEST: Final = 8192
"""Deliveries that are looked at, from the newest back; older ones come again after ack_wait."""

_answer = msgspec.msgpack.Decoder(tuple[bytes, list[int]])


class Orphans:
    """Of one consumer, seen by one of those who compete for it. Knows nothing that a crash could lose."""

    def __init__(self, broker: Broker, stream: str, consumer: str, held: Callable[[], Collection[int]]) -> None:
        """`held`: stream sequences of what this process has, or handed back for later."""
        self._broker, self._stream, self._consumer, self._held = broker, stream, consumer, held
        self._question = held_by(stream, consumer)
        self._id = secrets.token_bytes(8)
        self._subscription: Subscription | None = None
        self._looking: asyncio.Task[None] | None = None
        self._again = False
        self._patience = ANSWERS  # of the next look
        self._others: set[bytes] = set()  # who has asked, or answered the last time
        self._begun = self._asked = 0.0  # when somebody began to look, and asked last; monotonic
        self._yields = False  # to one who asked at the same time
        self._came_round = asyncio.Event()  # the own question

    async def start(self) -> None:
        """Answers the others, and looks once: whoever held the place before may have died."""
        self._subscription = await self._broker.subscribe_core(self._question, self._answer)
        self.look()

    async def close(self) -> None:
        """Only when nothing is held any more: it would count as nobody's."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        if self._subscription is not None:
            await self._subscription.close()

    def look(self, patience: float = ANSWERS) -> None:
        """Somebody has died, or (`patience` REUNION) everybody may have been cut off. Returns at once.

        The others get `patience` seconds to answer, fewer from ANSWERS on if all that are known have.
        """
        self._again = True
        self._patience = max(self._patience, patience)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())

    async def _look(self) -> None:
        while self._again:
            self._again = False
            patience, self._patience = self._patience, ANSWERS
            since = time.monotonic() + SETTLE
            await asyncio.sleep(SETTLE * random.uniform(1.0, 3.0))
            # one at a time, or what one hands back is taken for an orphan by the other
            while self._begun <= since and (rest := self._asked + 2 * AGAIN + SETTLE - time.monotonic()) > 0:  # noqa: ASYNC110
                await asyncio.sleep(rest)
            if self._begun > since:  # one that began before may believe what the dead has answered
                continue
            try:
                await self._hand_back(patience)
            except (BrokerError, TimeoutError) as error:
                log.info("%s.%s: no look for orphans: %s", self._stream, self._consumer, type(error).__name__)

    async def _hand_back(self, patience: float) -> None:
        info = await self._broker.api(f"CONSUMER.INFO.{self._stream}.{self._consumer}", timeout=LOOK)
        if info["num_ack_pending"] == 0:
            return
        floor, delivered = info["ack_floor"]["stream_seq"], info["delivered"]
        newest = delivered["stream_seq"]
        held = await self._held_by_all(patience)
        if self._yields:
            self.look(patience)
            return
        prefix = f"$JS.ACK.{self._stream}.{self._consumer}.1"
        for seq in range(max(floor, newest - NEWEST) + 1, newest + 1):
            if seq not in held:  # the server takes no notice where nothing is delivered and unanswered
                await self._broker.publish_core(f"{prefix}.{seq}.{delivered['consumer_seq']}.0.0", b"-NAK")

    async def _held_by_all(self, patience: float) -> set[int]:
        """Asked after the server said what it had delivered: who was sent it has it before the question."""
        held: dict[bytes, set[int]] = {}

        async def answered(message: Message) -> None:
            who, numbers = _answer.decode(message.data)
            held.setdefault(who, set()).update(numbers)  # what was handed back meanwhile may have come to another

        inbox = self._broker.nc.new_inbox()
        subscription = await self._broker.subscribe_core(inbox, answered)
        try:
            self._yields = False
            begun, mark = time.monotonic(), b""
            while (passed := time.monotonic() - begun) < ANSWERS or (
                passed < patience and not self._others <= held.keys()
            ):
                await self._ask(inbox, mark)
                mark = _REPEATED
                await asyncio.sleep(AGAIN)
        finally:
            await subscription.close()
        self._others = set(held) - {self._id}
        return {number for numbers in held.values() for number in numbers}

    async def _ask(self, inbox: str, mark: bytes) -> None:
        self._came_round.clear()
        await send(self._broker.nc, self._question, self._id + mark, reply=inbox)
        await asyncio.wait_for(self._came_round.wait(), LOOK)

    async def _answer(self, message: Message) -> None:
        self._asked = time.monotonic()
        who = message.data[: len(self._id)]
        if who == message.data:
            self._begun = self._asked
        self._yields = self._yields or who < self._id
        if who == self._id:
            self._came_round.set()
        else:
            self._others.add(who)
        await self._broker.publish_core(message.reply, msgspec.msgpack.encode((self._id, list(self._held()))))
