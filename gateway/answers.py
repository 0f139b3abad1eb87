"""The whole of a request as JSON: its answer, its state, and what failed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import asdict

from broker.errors import RequestEnded
from broker.facts import Facts
from broker.subjects import parse_run
from cornstalk.errors import UnknownRequest
from cornstalk.graph import State
from cornstalk.messages import FACTS, Error, Finish, StreamRef, Try, decode
from gateway.values import Values

STATUS_OF = {"cancelled": 499, "expired": 504}
"""HTTP status of a request that ended so; `failed` is 500, or 502 when a component failed."""


def unknown(request: str) -> UnknownRequest:
    return UnknownRequest(f"no request {request} is stored: it was never accepted, or it was purged", "request")


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
        raise unknown(request)
    return state, tries, len(log.messages)


async def whole_response(values: Values, state: State, response: Any) -> Any:
    """A stored response with each stream field whole and each large value.

    Raises RequestEnded or UploadGone when they were purged.
    """
    if isinstance(response, StreamRef):
        end = state.ends.get((response.node, response.gen))
        if end is None:
            raise RequestEnded("the streams of this request were purged")
        return await values.stream(end, response.output)
    if isinstance(response, dict):
        return {k: await whole_response(values, state, v) for k, v in response.items()}
    if isinstance(response, list):
        return [await whole_response(values, state, v) for v in response]
    return await values.loaded(response)


def stream_refs(response: Any, path: str = "") -> Iterator[tuple[str, StreamRef]]:
    """(field path, reference) of each stream field of a stored response."""
    members: Any = ()
    if isinstance(response, StreamRef):
        yield path, response
    elif isinstance(response, dict):
        members = response.items()
    elif isinstance(response, list):
        members = enumerate(response)
    for name, member in members:
        yield from stream_refs(member, f"{path}.{name}" if path else str(name))


def without_streams(response: Any) -> Any:
    """A stored response without its stream fields: clients have had them piece by piece."""
    if isinstance(response, dict):
        return {k: without_streams(v) for k, v in response.items() if not isinstance(v, StreamRef)}
    if isinstance(response, list):
        return [without_streams(v) for v in response if not isinstance(v, StreamRef)]
    return response


def answer(request: str, finish: Finish, response: Any) -> dict[str, Any]:
    """The JSON body of a request that ended well."""
    return {"request": request, "status": finish.status, "response": response, "times": finish.times}


def failure(request: str, finish: Finish) -> tuple[int, dict[str, Any]]:
    """HTTP status and JSON body of a request that did not."""
    error = finish.error or Error(code=finish.status, message=f"the request ended {finish.status}")
    status = STATUS_OF.get(finish.status, 502 if error.component else 500)
    return status, {"request": request, "status": finish.status, "error": error}


async def describe(values: Values, facts: Facts, request: str) -> dict[str, Any]:
    """GET /requests/{id}: where the request stands, node by node. Raises UnknownRequest, UploadGone."""
    state, tries, count = await read_state(facts, request)
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
        body["response"] = await values.loaded(without_streams(finish.response))
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
