"""Publishing work items: driver and dispatcher give the same item the same Msg-Id, so doing it twice is harmless."""

from __future__ import annotations

from broker.connection import Broker
from broker.subjects import DEADLINE, LANE, TENANT, TRACEPARENT, work
from cornstalk.messages import WorkItem, encode


def item_headers(item: WorkItem) -> dict[str, str]:
    """Trace context, deadline, lane and tenant, for whoever looks at a queue without decoding it."""
    headers = {DEADLINE: f"{item.deadline:.3f}", LANE: item.lane, TENANT: item.tenant}
    return {**headers, TRACEPARENT: item.trace} if item.trace else headers


async def publish_item(broker: Broker, item: WorkItem) -> None:
    """Raises QueueFull when the component's lane is at its limit."""
    await broker.publish_stored(
        work(item.component, item.lane),
        encode(item),
        deadline=item.deadline,
        msg_id=f"{item.request}:{item.node}:{item.gen}",
        headers=item_headers(item),
    )
