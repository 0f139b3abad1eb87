"""Durable requests: whoever of the gateways claims one drives it to its end, whatever happened to the one before."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from broker.connection import Broker
from broker.crash import crash_at
from broker.pull import Delivery, PullLoop
from broker.subjects import DRIVE
from cornstalk.errors import CornstalkError, UnknownRequest
from cornstalk.messages import Accepted, Finish, Malformed, NewerVersion, decode
from gateway.batch_results import Results
from gateway.requests import Requests

log = logging.getLogger(__name__)

CREDITS: Final = 256
"""Durable requests that one gateway drives at once."""
LATER: Final = 5.0
"""Seconds before an item that cannot be driven here is offered again."""
AGAIN: Final = 1.0
"""Seconds before an item of a request that another gateway drives is offered again, to that one maybe."""
HAND_BACK: Final = 2.0
"""Seconds that handing back may take at the end of this gateway; what is left comes back after ack_wait."""


class Durable:
    """Competes for DRIVE. An item is acked once its request's Finish is stored, so adoption is redelivery.

    Who accepted a request drives it without an item, until it claims that too: while it says so nobody else does.
    The request of a batch row leaves a result first: it is purged as soon as it has one.
    """

    def __init__(self, broker: Broker, requests: Requests, results: Results, ack_wait: float) -> None:
        """`ack_wait`: seconds without a sign of life after which another gateway gets the item."""
        self._requests, self._results, self._sign_of_life = requests, results, ack_wait / 3
        self._pull = PullLoop(broker, DRIVE, "drive", self._handle, credits=CREDITS)

    async def start(self) -> None:
        await self._pull.start()

    async def stop(self) -> None:
        """Claims nothing more."""
        await self._pull.stop()

    async def close(self) -> None:
        """Once nothing is driven here any more: hands back what was claimed."""
        await self._pull.join(HAND_BACK)

    async def _handle(self, delivery: Delivery) -> None:
        try:
            accepted = decode(Accepted, delivery.data)
        except Malformed as error:
            log.error("terminated: %s", error)
            await delivery.term("malformed")
            return
        except NewerVersion as error:
            log.warning("handed back: %s", error)
            await delivery.nak(LATER)
            return
        if accepted.row is None and await self._requests.driven_elsewhere(accepted.request):
            return await delivery.nak(AGAIN)
        try:
            run = await self._requests.run(accepted.request)
        except UnknownRequest:
            await delivery.ack()  # ended and purged
            return
        except CornstalkError as error:
            log.warning("handed back: request %s cannot be driven here: %s", accepted.request, error)
            await delivery.nak(LATER)
            return
        if not isinstance(run, Finish):
            await self._until_driven(run.task, delivery)
            if run.task.cancelled():  # this gateway stops: another one may go on at once
                await delivery.nak(0.0)
                return
            run = run.task.result()
        if accepted.row is not None:
            await self._results.of_request(accepted, accepted.row, run)
        crash_at("gateway.driven")
        await delivery.ack()

    async def _until_driven(self, task: asyncio.Task[Finish], delivery: Delivery) -> None:
        while not task.done():
            await delivery.in_progress()
            await asyncio.wait([task], timeout=self._sign_of_life)
