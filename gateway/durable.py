"""Durable requests: whoever of the gateways claims one drives it to its end, whatever happened to the one before."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final

from broker.connection import Broker
from broker.crash import crash_at
from broker.pull import Delivery, PullLoop
from broker.subjects import DRIVE
from broker.topology import ACK_WAIT
from cornstalk.errors import CornstalkError, UnknownRequest
from cornstalk.messages import Accepted, Finish, Malformed, NewerVersion, decode
from gateway.requests import Requests

log = logging.getLogger(__name__)

CREDITS: Final = 256
"""Durable requests that one gateway drives at once."""
LATER: Final = 5.0
"""Seconds before an item that cannot be driven here is offered again."""


class Durable:
    """Competes for DRIVE. An item is acked once its request's Finish is stored, so adoption is redelivery."""

    def __init__(self, broker: Broker, requests: Requests) -> None:
        self._requests = requests
        self._pull = PullLoop(broker, DRIVE, "drive", self._handle, credits=CREDITS)

    async def start(self) -> None:
        await self._pull.start()

    async def close(self) -> None:
        await self._pull.stop()

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
            while not run.task.done():
                await delivery.in_progress()
                with suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(run.task), ACK_WAIT / 3)
        crash_at("gateway.driven")
        await delivery.ack()
