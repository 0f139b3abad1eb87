"""A follower learns all that is stored, whether it was republished or not, and folds it once."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref

from broker import subjects
from broker.connection import Broker
from broker.facts import Facts
from cornstalk.messages import Accepted, Cancel, First, encode
from gateway.follow import Following


async def _stored(facts: Facts, subject: str, message: Accepted | Cancel | First) -> int:
    return (await facts.put(subject, encode(message), deadline=time.time() + 5, ttl=600)).seq


async def test_a_read_finds_what_was_not_heard_before_what_was(shared_broker: Broker, request_id: str) -> None:
    facts = Facts(shared_broker)
    following = Following(shared_broker, facts, request_id)  # it does not listen
    accepted = Accepted(request=request_id, tenant="t", app="a", app_version="1", deadline=time.time() + 60)
    await _stored(facts, subjects.accepted(request_id), accepted)
    await following.read()
    assert following.state.accepted == accepted
    for n in range(3):
        first = First(node=f"n{n}", gen=0, attempt="a", output="text")
        seq = await _stored(facts, subjects.first(request_id, f"n{n}", 0, "text"), first)
        if n == 1:
            following.add(first, seq)
    await following.read()
    assert following.state.firsts == {(f"n{n}", 0, "text") for n in range(3)}


async def test_a_read_that_finds_nothing_new_wakes_nobody(shared_broker: Broker, request_id: str) -> None:
    facts = Facts(shared_broker)
    following = Following(shared_broker, facts, request_id)
    cancel = Cancel(reason="x")
    seq = await _stored(facts, subjects.cancel(request_id), cancel)
    following.add(cancel, seq)
    await following.changed()
    await following.read()
    await following.read()
    waiting = asyncio.create_task(following.changed())
    await asyncio.sleep(0)
    assert not waiting.done()
    await _stored(facts, subjects.first(request_id, "n", 0, "text"), First(node="n", gen=0, attempt="a", output="text"))
    await following.read()
    await asyncio.wait_for(waiting, 5)


async def test_one_that_is_closed_goes_with_its_last_use(shared_broker: Broker, request_id: str) -> None:
    """A gateway has hundreds a second: what is left to the cycle collector stays for minutes."""
    following = await Following(shared_broker, Facts(shared_broker), request_id).start()
    gone = weakref.ref(following)
    gc.disable()
    try:
        await following.close()
        del following
        await asyncio.sleep(0)
        assert gone() is None
    finally:
        gc.enable()
