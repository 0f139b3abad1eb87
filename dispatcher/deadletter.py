"""Facts that do not decode: the request ends failed, the bytes go to the dead letters, and nothing loops."""

from __future__ import annotations

import logging
import time
from typing import Final

from broker.connection import Broker
from broker.crash import crash_at
from broker.errors import QueueFull, StorageFull
from broker.pull import Delivery
from broker.subjects import dead_letter, parse_run, token
from cornstalk.messages import Error, Finish
from dispatcher.publisher import Publisher

log = logging.getLogger(__name__)

STORE_WITHIN: Final = 10.0
"""Seconds; then the fact is redelivered and all of this is done again."""


class DeadLetters:
    """Stateless. The order is copy, end, term: a crash between two of them repeats harmless steps, and nobody purges
    the fact before it is copied.
    """

    def __init__(self, broker: Broker, publisher: Publisher) -> None:
        self._broker, self._publisher = broker, publisher

    async def bury(self, delivery: Delivery, cause: Exception) -> None:
        """Raises BrokerError: then it comes again."""
        request, node, gen = _address(delivery.subject)
        log.error("malformed fact %s of request %s: %s", delivery.stream_seq, request, type(cause).__name__)
        try:
            await self._broker.publish_stored(
                dead_letter("dispatcher", "malformed", request or "none", node or "none", gen),
                delivery.data,
                deadline=time.time() + STORE_WITHIN,
                msg_id=f"malformed:{delivery.stream_seq}",
                headers={"Cornstalk-Subject": delivery.subject},
            )
        except (QueueFull, StorageFull) as full:
            log.error("no room for the dead letter of fact %s: %s", delivery.stream_seq, type(full).__name__)
        crash_at("dispatcher.buried")
        if request:
            error = Error(code="malformed", message="a stored fact of this request does not decode", node=node)
            await self._publisher.finish(request, Finish(status="failed", error=error), time.time())
            crash_at("dispatcher.condemned")
        await delivery.term("malformed")


def _address(subject: str) -> tuple[str, str, int]:
    """(request, node, generation), as far as the subject tells."""
    try:
        key = parse_run(subject)
        return token(key.request), key.node and token(key.node), key.gen
    except ValueError:
        pass
    try:
        return token(subject.split(".")[1]), "", 0
    except (ValueError, IndexError):
        return "", "", 0
