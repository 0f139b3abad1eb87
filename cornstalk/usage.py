"""What a request used: one record per request, with each node that counted once, whatever died (issue 4)."""

from __future__ import annotations

from msgspec import Struct

from cornstalk.graph_state import State
from cornstalk.messages import Lane, Message, Status, Usage


class NodeUsage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one node used, in the attempt whose values became its values."""

    node: str  # token
    id: str  # path of the composite call, task and ordinal
    component: str
    gen: int
    attempt: str
    worker: str
    usage: Usage


class RequestUsage(Message, frozen=True, kw_only=True):
    """usage.<app>.<r>: stored once, with the request's end. Kept for 30 days, for who accounts for it."""

    request: str
    tenant: str
    app: str
    app_version: str
    lane: Lane
    status: Status
    accepted_at: float  # Unix seconds
    nodes: tuple[NodeUsage, ...] = ()


def usage_of(state: State) -> RequestUsage:
    """Of a request that has an end. A node counts if it was done by then and is no guess that was given up.

    A node that ran again for lost tensors counts as it ran first: its first done End has its values.
    """
    accepted, finish = state.accepted, state.finish
    assert accepted is not None
    assert finish is not None
    counted = [(node, end) for node in state.log_nodes() if (end := state.first_done(node.token)) is not None]
    return RequestUsage(
        request=accepted.request,
        tenant=accepted.tenant,
        app=accepted.app,
        app_version=accepted.app_version,
        lane=accepted.lane,
        status=finish.status,
        accepted_at=accepted.accepted_at,
        nodes=tuple(
            NodeUsage(
                node=node.token,
                id=node.id,
                component=node.component,
                gen=end.gen,
                attempt=end.attempt,
                worker=end.worker,
                usage=end.usage,
            )
            for node, end in counted
        ),
    )
