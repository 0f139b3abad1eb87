"""Triggers whose items cannot be stored now: kept in progress outside the credits, so that they stall nobody else."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from broker.crash import crash_at
from broker.errors import Disconnected
from broker.pull import Delivery
from broker.topology import DISPATCH_ACK_WAIT
from cornstalk.graph import Decision, State
from cornstalk.loops import forever
from cornstalk.messages import Accepted
from dispatcher.publisher import Publisher

MAX_HELD: Final = 2048
"""Half of the consumer's max_ack_pending."""
HAND_BACK: Final = 2.0
"""Seconds after which a trigger over the bound comes again."""
LONGEST_PAUSE: Final = 1.0
"""Seconds between two tries of a trigger, while few are held."""
TRIES: Final = 256
"""Tries a second of all that are held, about: the dispatcher's time is for those whose queues have room."""
SIGN_OF_LIFE: Final = DISPATCH_ACK_WAIT / 3


class Held:
    """Tries again with back-off until all is stored, the request has ended or its deadline is over; then acks.

    Memory only: after a crash the triggers are redelivered. Over MAX_HELD a trigger is handed back with delay.
    """

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    async def keep(self, delivery: Delivery, accepted: Accepted, state: State, rest: Sequence[Decision]) -> None:
        """Returns at once."""
        if len(self._tasks) >= MAX_HELD:
            await delivery.nak(HAND_BACK)
            return
        task = asyncio.create_task(self._keep(delivery, accepted, state, rest))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Lets go of all: what is not acked is redelivered to another dispatcher."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _keep(self, delivery: Delivery, accepted: Accepted, state: State, rest: Sequence[Decision]) -> None:
        living = asyncio.create_task(forever(lambda: _stay(delivery), "signs of life"))
        try:
            pause = 0.05
            while rest and state.finish is None and time.time() < accepted.deadline:
                await asyncio.sleep(pause * (0.5 + random.random()))
                pause = min(max(LONGEST_PAUSE, len(self) / TRIES), pause * 2)
                rest = await self._publisher.publish(accepted, state, rest)
                crash_at("dispatcher.held")
        finally:
            living.cancel()
        await delivery.ack()


async def _stay(delivery: Delivery) -> None:
    with suppress(Disconnected):  # an outage: the trigger comes again
        await delivery.in_progress()
    await asyncio.sleep(SIGN_OF_LIFE)
