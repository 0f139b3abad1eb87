"""Publishing work items: driver and dispatcher give the same item the same Msg-Id, so doing it twice is harmless."""

from __future__ import annotations

import math
import time
from typing import Final

import msgspec

from broker.connection import Broker
from broker.lifetimes import fact_ttl
from broker.subjects import DEADLINE, LANE, TENANT, TRACEPARENT, work
from broker.uploads import Spool
from cornstalk.large import Spooled, without_large
from cornstalk.messages import WorkItem, encode

LARGEST: Final = 256 << 10
"""Bytes of an item from which on its large values leave it for the spool (design rule 11)."""


def item_headers(item: WorkItem) -> dict[str, str]:
    """Trace context, deadline, lane and tenant, for whoever looks at a queue without decoding it."""
    headers = {DEADLINE: f"{item.deadline:.3f}", LANE: item.lane, TENANT: item.tenant}
    return {**headers, TRACEPARENT: item.trace} if item.trace else headers


async def publish_item(broker: Broker, item: WorkItem, *, within: float = math.inf) -> int:
    """Where the item stands in its queue, whoever published it first.

    `within`: seconds it may take, at most until its deadline. Raises DeadlineExceeded, NoStream when there is no queue,
    QueueFull when the component's lane (or the spool) is at its limit, PayloadTooLarge when the references in the item
    alone do not fit into a message.
    """
    data, deadline = encode(item), min(item.deadline, time.time() + within)
    if len(data) > LARGEST:
        data = encode(await _without_large(broker, item, deadline))
    confirmed = await broker.publish_stored(
        work(item.component, item.lane),
        data,
        deadline=deadline,
        msg_id=f"{item.request}:{item.node}:{item.gen}",
        headers=item_headers(item),
    )
    return confirmed.seq


async def _without_large(broker: Broker, item: WorkItem, deadline: float) -> WorkItem:
    """Values that were small enough for the Ends they came in add up where many meet: marks of them stay in the item.

    A crash leaves spooled values that nothing names; they expire with the request, and a second publisher finds them.
    """
    large: Spooled = {}
    inputs = without_large(item.inputs, large)
    spool = Spool(broker)
    for mark, data in large.items():
        await spool.put(data, mark.media_type, ttl=fact_ttl(item.deadline), deadline=deadline)
    return msgspec.structs.replace(item, inputs=inputs)
