"""The whole of a request as JSON: its answer, its state, and what failed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from broker.errors import RequestEnded
from broker.facts import Facts
from cornstalk import media
from cornstalk.errors import BadInput, UnknownRequest
from cornstalk.graph import State
from cornstalk.messages import Error, Finish, StreamRef
from gateway.history import History
from gateway.values import Values

STATUS_OF = {"cancelled": 499, "expired": 504}
"""HTTP status of a request that ended so; `failed` is 500, or 502 when a component failed."""


def unknown(request: str) -> UnknownRequest:
    return UnknownRequest(f"no request {request} is stored: it was never accepted, or it was purged", "request")


async def read_history(facts: Facts, request: str) -> History:
    """Everything that is stored of a request. Raises UnknownRequest."""
    history = History(await facts.read(request))
    if history.state.accepted is None and history.state.finish is None:
        raise unknown(request)
    return history


async def read_state(facts: Facts, request: str) -> State:
    """The stored facts of a request, folded. Raises UnknownRequest."""
    return (await read_history(facts, request)).state


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
    status = STATUS_OF.get(finish.status) or _status_of(error)
    return status, {"request": request, "status": finish.status, "error": error}


def _status_of(error: Error) -> int:
    if error.code == BadInput.code:
        return BadInput.status
    return media.STATUS_OF.get(error.code, 502) if error.component else 500


async def describe(values: Values, facts: Facts, request: str) -> dict[str, Any]:
    """GET /requests/{id}: where the request stands, node by node. Raises UnknownRequest, UploadGone."""
    history = await read_history(facts, request)
    finish, accepted = history.state.finish, history.state.accepted
    body: dict[str, Any] = {
        "request": request,
        "app": accepted.app if accepted else "",
        "status": finish.status if finish else "running",
        "times": (finish.times if finish else {}) or ({"accepted": accepted.accepted_at} if accepted else {}),
        "facts": history.facts,
        "cuts": len(history.state.cuts),
        "nodes": history.nodes(),
    }
    if finish is not None and finish.status == "done":
        body["response"] = await values.loaded(without_streams(finish.response))
    elif finish is not None:
        body["error"] = finish.error
    return body
