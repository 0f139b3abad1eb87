"""A cancel that comes in the moments between the look of a worker and the start of its engine is not missed."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest

from broker.connection import Broker
from broker.facts import Facts
from broker.subjects import cancel, cancel_hint
from components.call import ItemCall
from components.cancels import Cancels
from components.engine import Cancelled, Engine
from components.null import NullEngine
from components.outputs import Outputs
from cornstalk.messages import Cancel, WorkItem, encode
from cornstalk.tasks.null import Null
from tests.waiting import eventually


class Nothing:
    """What earlier attempts stored: nothing."""

    prior: dict[str, Any] = {}
    prior_tokens: dict[str, Any] = {}


def call_of(request: str) -> ItemCall:
    item = WorkItem(
        request=request, node="n", gen=0, component="c", lane="interactive", tenant="t", deadline=time.time() + 60
    )
    return ItemCall(item, "a", {**Null.defaults, "service_ms": 20_000.0}, cast(Outputs, Nothing()))


async def test_before_the_call_is_watched(shared_broker: Broker, request_id: str) -> None:
    engine = cast(Engine, NullEngine(Null(name="value")))
    facts = Facts(shared_broker)
    cancels = Cancels(shared_broker, facts, engine)
    await cancels.start()
    try:
        asked = time.time()
        assert not await cancels.ended(request_id, asked)
        await facts.put(cancel(request_id), encode(Cancel(reason="test")), deadline=asked + 5, ttl=60)
        await shared_broker.publish_core(cancel_hint(request_id))

        async def heard() -> bool:
            return await cancels.ended(request_id, asked)

        await eventually(heard)
        call = call_of(request_id)
        async with cancels.watch(call):
            with pytest.raises(Cancelled):
                await call.run(engine)
    finally:
        await cancels.close()


async def test_before_the_engine_has_the_call() -> None:
    call = call_of("r" * 32)
    call.cancel("cancelled", grace=0.0)
    with pytest.raises(Cancelled, match="cancelled"):
        await call.run(cast(Engine, NullEngine(Null(name="value"))))
