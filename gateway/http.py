"""The HTTP face: routes, errors as JSON. Thin: what happens stands in requests.py, apps.py, events.py, sse.py."""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import suppress
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from broker.crash import crash_at
from cornstalk.app import App
from cornstalk.errors import AppError, BadInput
from cornstalk.messages import Finish
from cornstalk.records import AppRecord
from cornstalk.release import check_release
from gateway.answers import answer, describe, failure, read_state, whole_response
from gateway.components import describe_components
from gateway.errors import Forbidden, Unauthorized, json_response
from gateway.events import events
from gateway.intake import read_input
from gateway.options import read_options
from gateway.requests import Run
from gateway.service import Service
from gateway.sse import EventStream, Say
from gateway.streams import media_types
from gateway.values import Values

router = APIRouter()

REQUEST_HEADER: Final = "Cornstalk-Request"


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


@router.get("/healthz")
async def healthz() -> Response:
    """This process lives."""
    return json_response({"status": "ok"})


@router.get("/readyz")
async def readyz(request: Request) -> Response:
    """Requests can be served: NATS is there, and so are its streams."""
    why = await service_of(request).not_ready()
    return json_response({"status": "not ready", "why": why}, 503) if why else json_response({"status": "ready"})


@router.get("/apps")
async def list_apps(request: Request) -> Response:
    """Every app with the JSON schemas of its request and response."""
    apps = [_described(record, app) for record, app in await service_of(request).apps.deployed()]
    return json_response({"apps": apps})


@router.post("/apps")
async def deploy(request: Request) -> Response:
    """Admin: deploys the app file in the body."""
    service = service_of(request)
    check_admin(request, service)
    try:
        source = (await request.body()).decode()
    except UnicodeDecodeError as error:
        raise BadInput(f"expected Python source in UTF-8, got other bytes at {error.start}") from error
    record = await service.apps.deploy(source)
    app = await service.apps.version(record.name, record.version)
    body = {
        "name": record.name,
        "version": record.version,
        "components": list(record.components),
        "warnings": [str(finding) for finding in app.warnings],
    }
    return json_response(body, 201)


@router.delete("/apps/{name}")
async def remove(name: str, request: Request) -> Response:
    """Admin: removes an app; what only it uses is drained."""
    service = service_of(request)
    check_admin(request, service)
    return json_response({"name": name, "drains": await service.apps.remove(name)})


@router.get("/components")
async def components(request: Request) -> Response:
    """Every component: who uses it, what waits, who works."""
    return json_response({"components": await describe_components(service_of(request).broker)})


@router.post("/apps/{name}")
async def invoke(name: str, request: Request) -> Response:
    """Runs one request: one JSON answer, or SSE when the client accepts text/event-stream."""
    service = service_of(request)
    app = await service.apps.current(name)
    options = read_options(name, request.headers)
    within = options.deadline - time.time()
    await service.admission.check(tuple(app.components()), options.lane, within, options.durable)
    value = await read_input(app, request, service.uploads, options.deadline)
    await service.requests.accept(app, value, options)
    if "text/event-stream" in request.headers.get("accept", ""):
        return _sse(service, app, options.request, 0)
    return await _answered(service, options.request, request)


@router.get("/requests/{request_id}")
async def status(request_id: str, request: Request) -> Response:
    """Where a request stands, node by node."""
    service = service_of(request)
    return json_response(await describe(Values(service.broker, checked_id(request_id)), service.facts, request_id))


@router.get("/requests/{request_id}/events")
async def resume(request_id: str, request: Request) -> Response:
    """SSE from after `Last-Event-ID` on. Takes over an unfinished request whose gateway has died."""
    service = service_of(request)
    state = await read_state(service.facts, checked_id(request_id))
    app = None
    if state.finish is None:
        check_release(state.graphs.values())
    if state.accepted is not None:
        app = await service.apps.version(state.accepted.app, state.accepted.app_version)
    return _sse(service, app, request_id, _last_event_id(request))


@router.delete("/requests/{request_id}")
async def cancel(request_id: str, request: Request) -> Response:
    """Cancels at once; a request that has ended stays as it ended. Idempotent."""
    ended = await service_of(request).requests.cancel(checked_id(request_id), "cancelled by the client")
    return json_response({"request": request_id, "status": ended or "cancelling"}, 202)


def _described(record: AppRecord, app: App | AppError) -> dict[str, Any]:
    body = {
        "name": record.name,
        "version": record.version,
        "components": list(record.components),
        "deployed_at": record.deployed_at,
    }
    if isinstance(app, AppError):
        return body | {"error": {"code": app.code, "message": str(app)}}
    models = {"request": app.request_model, "response": app.response_model}
    return body | {name: model.model_json_schema() for name, model in models.items()}


async def _answered(service: Service, request_id: str, request: Request) -> Response:
    """The one JSON answer. A client that goes away leaves the request, as with SSE."""
    headers = {REQUEST_HEADER: request_id}
    async with service.requests.attached(request_id) as run:
        finish = run if isinstance(run, Finish) else await _finished_or_left(run, request)
        if finish is None:
            return Response(status_code=499, headers=headers)
        if finish.status != "done":
            status_code, body = failure(request_id, finish)
            return json_response(body, status_code, headers)
        state = await read_state(service.facts, request_id)
        response = await whole_response(Values(service.broker, request_id), state, finish.response)
        return json_response(answer(request_id, finish, response), 200, headers)


async def _finished_or_left(run: Run, request: Request) -> Finish | None:
    """The Finish, or None when the client disconnects before."""
    left = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({run.task, left}, return_when=asyncio.FIRST_COMPLETED)
        return await run.finished() if run.task.done() else None
    finally:
        left.cancel()
        with suppress(asyncio.CancelledError):
            await left


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _sse(service: Service, app: App | None, request_id: str, after: int) -> Response:
    async def tell(say: Say) -> None:
        async with service.requests.attached(request_id) as run:
            async for event in events(service.broker, service.facts, run, request_id, media_types(app), after):
                await say(event)
                crash_at("gateway.told")

    return EventStream(tell, {REQUEST_HEADER: request_id})


def _last_event_id(request: Request) -> int:
    text = request.headers.get("last-event-id", "0")
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise BadInput(f"expected the id of a chunk, got {text[:40]!r}", "Last-Event-ID")
    return int(text)


def checked_id(text: str) -> str:
    """The id of a request. Raises BadInput for what cannot be one."""
    if len(text) != 32 or not all(c in "0123456789abcdef" for c in text):
        raise BadInput(f"expected 32 hex digits, got {text[:40]!r}", "request")
    return text


def check_admin(request: Request, service: Service) -> None:
    """Raises Unauthorized or Forbidden unless the call brings the admin token of this gateway."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        raise Unauthorized("this call needs the admin token: Authorization: Bearer TOKEN")
    if not secrets.compare_digest(given.encode(), service.admin_token.encode()):
        raise Forbidden("that is not the admin token of this gateway")
