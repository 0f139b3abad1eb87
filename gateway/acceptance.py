"""What a gateway promises: a request is stored, and a durable one is queued, before anybody is told that it runs."""

from __future__ import annotations

import time
from typing import Any, Final

from broker.connection import Broker
from broker.crash import crash_at
from broker.errors import DeadlineExceeded
from broker.facts import Facts
from broker.lifetimes import fact_ttl
from broker.patience import until_room
from broker.subjects import accepted as accepted_subject
from broker.subjects import drive, finish
from cornstalk.app import App
from cornstalk.messages import Accepted, decode, encode
from gateway.errors import Expired
from gateway.options import Options

QUEUE_WAIT: Final = 5.0
"""Seconds that queueing a request again may take."""


def asked(app: App, value: dict[str, Any], options: Options) -> Accepted:
    """What a client asks of the version of `app` that is current now."""
    return Accepted(
        request=options.request,
        tenant=options.tenant,
        app=app.name,
        app_version=app.version,
        lane=options.lane,
        durable=options.durable,
        deadline=options.deadline,
        resume_grace=options.resume_grace,
        seed=options.seed,
        trace=options.trace,
        accepted_at=time.time(),
        input=value,
    )


def same_request(stored: Accepted, accepted: Accepted) -> bool:
    return stored.app == accepted.app and encode(stored.input) == encode(accepted.input)


class Acceptance:
    """Stores what was asked, put-if-absent. Stateless; a crash between two lines is mended by who asks again."""

    def __init__(self, broker: Broker, facts: Facts) -> None:
        self._broker, self._facts = broker, facts

    async def store(self, accepted: Accepted) -> tuple[Accepted, int | None]:
        """The stored acceptance, and its sequence if it is this one. A durable one is in DRIVE when this returns, so
        that a gateway drives it, maybe another one.

        Raises Expired when the deadline passed before, and BrokerError.
        """
        request, deadline = accepted.request, accepted.deadline
        crash_at("gateway.accepting")
        try:
            put = await self._facts.put(
                accepted_subject(request), encode(accepted), deadline=deadline, ttl=fact_ttl(deadline), patient=False
            )
            crash_at("gateway.accepted")
            stored = accepted if put.won else decode(Accepted, put.data)
            if stored.durable:  # also when it was stored before: who stored it may have died before this line
                await self._queue(stored, deadline)
                crash_at("gateway.queued")
        except DeadlineExceeded as error:
            raise Expired("the deadline passed before the request was accepted") from error
        return stored, put.seq if put.won else None

    async def queue(self, request: str) -> bool:
        """Puts a durable request into DRIVE, for who stored it may have died before that line. False if there is none.

        Raises BrokerError.
        """
        stored = await self._facts.last(accepted_subject(request))
        if stored is None:
            return False
        await self._queue(decode(Accepted, stored.data), time.time() + QUEUE_WAIT)
        return True

    async def _queue(self, accepted: Accepted, deadline: float) -> None:
        """Waits for room: it is accepted already."""
        subject, data, msg_id = drive(accepted.app), encode(accepted), f"drive:{accepted.request}"
        await until_room(lambda: self._broker.publish_stored(subject, data, deadline=deadline, msg_id=msg_id))

    async def purged(self, request: str) -> bool:
        """Whether only the tombstone of the request is left: accepting it again would run it again."""
        ended = await self._facts.last(finish(request)) is not None
        return ended and await self._facts.last(accepted_subject(request)) is None
