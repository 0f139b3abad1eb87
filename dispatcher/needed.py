"""Whether somebody still counts on an app version: what began on one ends on it."""

from __future__ import annotations

from collections.abc import Collection

from broker.connection import Broker
from broker.facts import Facts
from broker.reads import last_stored, pages
from broker.subjects import ALL_BATCH_BEGUN, BATCH, batch_word, finish, parse_run
from cornstalk.batch import Begun
from cornstalk.messages import Accepted
from dispatcher.registered import decoded

Version = tuple[str, str]
"""(app, version)."""


async def needed(broker: Broker, versions: Collection[Version]) -> bool:
    """Whether a request or a batch job that has not ended began on one of them. Raises BrokerError.

    Requests first: a row of a job that is accepted after that is a row of a job that has not ended.
    """
    return await _by_a_request(Facts(broker), versions) or await _by_a_job(broker, versions)


async def _by_a_request(facts: Facts, versions: Collection[Version]) -> bool:
    async for stored in facts.accepted():
        request = parse_run(stored.subject).request
        fact = decoded(Accepted, request, stored.data)
        if fact is None or (fact.app, fact.app_version) not in versions:
            continue
        if await facts.last(finish(request)) is None:
            return True
    return False


async def _by_a_job(broker: Broker, versions: Collection[Version]) -> bool:
    async for stored in pages(broker, BATCH, ALL_BATCH_BEGUN):
        job = stored.subject.split(".")[2]
        begun = decoded(Begun, job, stored.data)
        if begun is None or (begun.app, begun.app_version) not in versions:
            continue
        if await last_stored(broker, BATCH, batch_word(job, "summary")) is None:
            return True
    return False
