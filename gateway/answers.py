"""The whole of a request as JSON: its answer, its state, and what failed."""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict

from broker.connection import Broker
from broker.errors import RequestEnded
from broker.facts import Facts
from broker.subjects import parse_run
from cornstalk.errors import UnknownRequest
from cornstalk.graph import State
from cornstalk.messages import FACTS, Error, Finish, StreamRef, Try, decode
from gateway.events import without_streams
from gateway.values import whole

STATUS_OF = {"cancelled": 499, "expired": 504}
"""HTTP status of a request that ended so; `failed` is 500, or 502 when a component failed."""


async def read_state(facts: Facts, request: str) -> tuple[State, dict[tuple[str, int], int], int]:
    """The stored facts of a request folded, starts of suspects by (node, gen), and how many facts there are."""
    state = State()
    tries: dict[tuple[str, int], int] = {}
    log = await facts.read(request)
    for stored in log.messages:
        kind = FACTS[parse_run(stored.subject).kind]
        fact = decode(kind, stored.data)
        state.add(fact, stored.seq)
        if isinstance(fact, Try):
            tries[fact.node, fact.gen] = tries.get((fact.node, fact.gen), 0) + 1
    if state.accepted is None and state.finish is None:
        raise UnknownRequest(f"no request {request} is stored: it was never accepted, or it was purged")
    return state, tries, len(log.messages)


async def whole_response(broker: Broker, state: State, response: Any) -> Any:
    """A stored response with each stream field whole. Raises RequestEnded when they were purged."""
    if isinstance(response, StreamRef):
        end = state.ends.get((response.node, response.gen))
        if end is None:
            raise RequestEnded("the streams of this request were purged")
        value = await whole(broker, response, int(end.outputs[response.output]))
        return "" if value is None else value
    if isinstance(response, dict):
        return {k: await whole_response(broker, state, v) for k, v in response.items()}
    if isinstance(response, list):
        return [await whole_response(broker, state, v) for v in response]
    return response


def answer(request: str, finish: Finish, response: Any) -> dict[str, Any]:
    """The JSON body of a request that ended well."""
    return {"request": request, "status": finish.status, "response": response, "times": finish.times}


def failure(request: str, finish: Finish) -> tuple[int, dict[str, Any]]:
    """HTTP status and JSON body of a request that did not."""
    error = finish.error or Error(code=finish.status, message=f"the request ended {finish.status}")
    status = STATUS_OF.get(finish.status, 502 if error.component else 500)
    return status, {"request": request, "status": finish.status, "error": error}


def describe(request: str, state: State, tries: dict[tuple[str, int], int], count: int) -> dict[str, Any]:
    """GET /requests/{id}: where the request stands, node by node."""
    finish, accepted = state.finish, state.accepted
    body: dict[str, Any] = {
        "request": request,
        "app": accepted.app if accepted else "",
        "status": finish.status if finish else "running",
        "times": (finish.times if finish else {}) or ({"accepted": accepted.accepted_at} if accepted else {}),
        "facts": count,
        "nodes": [_node(state, token, tries) for token in state.nodes if token not in state.cuts],
    }
    if finish is not None and finish.status == "done":
        body["response"] = without_streams(finish.response)
    elif finish is not None:
        body["error"] = finish.error
    return body


def _node(state: State, token: str, tries: dict[tuple[str, int], int]) -> dict[str, Any]:
    node, gen, end = state.nodes[token], state.gen(token), state.current_end(token)
    about: dict[str, Any] = {
        "id": node.id,
        "node": token,
        "component": node.component,
        "line": node.line,
        "gen": gen,
        "restarts": tries.get((token, gen), 0),
        "outcome": end.outcome if end else "",
    }
    if end is not None:
        about |= {"worker": end.worker, "usage": asdict(end.usage), "times": asdict(end.times)}
        if end.error is not None:
            about["error"] = end.error
    return about
