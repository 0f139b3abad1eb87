"""Autoscaling of a component over HTTP: how many workers it may get, and why it got as many as it has."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from fastapi import APIRouter, Request
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import asdict, replace
from starlette.responses import Response

from broker.connection import Broker
from broker.errors import Conflict
from broker.registry import Registry
from broker.subjects import AUTOSCALE, COMPONENTS, DECISIONS, token
from cornstalk.errors import BadInput
from cornstalk.messages import Message, decode, encode
from cornstalk.records import ComponentRecord, Items, ScaleDecision, ScalePolicy, Seconds, Workers
from gateway.body import read_json
from gateway.components import describe_component
from gateway.errors import json_response
from gateway.http import check_admin, service_of

router = APIRouter()

TRIES: Final = 5
"""How often a change is tried while others change the same settings."""


class UnknownComponent(BadInput):
    """Raised when no deployed app has such a component, nor a request that still runs."""

    code = "unknown_component"
    status = 404


class _Change(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings to set; the others stay."""

    min: Workers | UnsetType = UNSET
    max: Workers | UnsetType = UNSET
    target: Items | UnsetType = UNSET
    activation: Items | UnsetType = UNSET
    cooldown: Seconds | UnsetType = UNSET
    window: Seconds | UnsetType = UNSET


@router.get("/components/{component}/autoscale")
async def explain(component: str, request: Request) -> Response:
    """Settings, what waits and who works now, and the newest decisions first, each with its reason."""
    broker = service_of(request).broker
    record = await _record(broker, component)
    entry = await Registry(broker, AUTOSCALE).get(component)
    policy = decode(ScalePolicy, entry.data) if entry is not None else ScalePolicy()
    decisions = [decode(ScaleDecision, data) for data in await Registry(broker, DECISIONS).history(component)]
    body = await describe_component(broker, record)
    return json_response(
        body | {"policy": _plain(policy), "decisions": [_plain(d) | {"policy": _plain(d.policy)} for d in decisions]}
    )


@router.patch("/components/{component}/autoscale")
async def change(component: str, request: Request) -> Response:
    """Admin: changes the settings that are in the body. A gateway that dies on the way has changed all or none."""
    service = service_of(request)
    check_admin(request, service)
    record = await _record(service.broker, component)
    asked = _change(await read_json(request))
    policy = await _changed(Registry(service.broker, AUTOSCALE), component, asked)
    return json_response({"id": component, "autoscaled": record.autoscaled, "policy": _plain(policy)})


def _change(body: Any) -> _Change:
    try:
        return msgspec.convert(body, _Change)
    except msgspec.ValidationError as error:
        said, _, where = str(error).partition(" - at `$.")
        raise BadInput(said[:1].lower() + said[1:], where.rstrip("`")) from error


async def _changed(policies: Registry, component: str, asked: _Change) -> ScalePolicy:
    """The settings with the change, stored. Raises BadInput, Conflict (others change them all the time)."""
    given = {name: value for name, value in asdict(asked).items() if value is not UNSET}
    for left in reversed(range(TRIES)):
        entry = await policies.get(component)
        policy = replace(decode(ScalePolicy, entry.data) if entry is not None else ScalePolicy(), **given)
        if policy.max and policy.max < policy.min:
            raise BadInput(f"expected at least min, which is {policy.min}, or 0, got {policy.max}", "max")
        try:
            if entry is None:
                await policies.create(component, encode(policy))
            else:
                await policies.update(component, encode(policy), entry.revision)
            return policy
        except Conflict:
            if not left:
                raise
    raise AssertionError("unreachable")


async def _record(broker: Broker, component: str) -> ComponentRecord:
    try:
        entry = await Registry(broker, COMPONENTS).get(token(component))
    except ValueError:
        entry = None
    if entry is None:
        raise UnknownComponent(f"no component {component[:80]!r} is registered: see GET /components", "component")
    return decode(ComponentRecord, entry.data)


def _plain(message: Message) -> dict[str, Any]:
    """Without the version of its stored form."""
    return {name: value for name, value in asdict(message).items() if name != "v"}
