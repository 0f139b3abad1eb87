"""Autoscaling over HTTP: settings, which of them are refused, and what was decided. No autoscaler runs."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import pytest
import pytest_asyncio

from broker.registry import Registry
from broker.subjects import AUTOSCALE, DECISIONS
from cornstalk.messages import encode
from cornstalk.records import ScaleDecision, ScalePolicy
from tests.e2e.apps import APPS
from tests.stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

DEFAULTS = {"min": 1, "max": 0, "target": 0, "activation": 0, "cooldown": 300, "window": 300}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def component(stack: Stack) -> str:
    first: str = (await stack.deploy(APPS / "one.py"))["components"][0]
    return first


async def patch(stack: Stack, component: str, body: Any, token: str = "") -> httpx.Response:
    headers = {"Authorization": f"Bearer {token or stack.admin}"}
    return await stack.clients[0].patch(f"/components/{component}/autoscale", json=body, headers=headers)


async def explained(stack: Stack, component: str) -> dict[str, Any]:
    answer = await stack.clients[0].get(f"/components/{component}/autoscale")
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def test_settings_are_changed_one_by_one(stack: Stack, component: str) -> None:
    before = await explained(stack, component)
    assert (before["id"], before["autoscaled"], before["replicas"]) == (component, False, 2)
    assert (before["policy"], before["decisions"]) == (DEFAULTS, [])
    answer = await patch(stack, component, {"max": 4})
    assert answer.json() == {"id": component, "autoscaled": False, "policy": DEFAULTS | {"max": 4}}
    await patch(stack, component, {"min": 0, "window": 0})
    assert (await explained(stack, component))["policy"] == DEFAULTS | {"max": 4, "min": 0, "window": 0}
    assert (await patch(stack, component, {"max": 0, "min": 1, "window": 300})).json()["policy"] == DEFAULTS


async def test_changes_at_once_are_all_kept(stack: Stack, component: str) -> None:
    await asyncio.gather(*(patch(stack, component, {name: 7}) for name in ("min", "target", "cooldown")))
    assert (await explained(stack, component))["policy"] == DEFAULTS | {"min": 7, "target": 7, "cooldown": 7}
    await Registry(stack.broker, AUTOSCALE).delete(component)


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"min": 3, "max": 2}, 422, "max"),
        ({"min": -1}, 422, "min"),
        ({"max": 1001}, 422, "max"),
        ({"target": 0.5}, 422, "target"),
        ({"cooldown": "300"}, 422, "cooldown"),
        ({"window": 3601}, 422, "window"),
        ({"activation": None}, 422, "activation"),
        ({"minimum": 1}, 422, ""),
        ([], 422, ""),
        ("min", 422, ""),
    ],
)
async def test_what_cannot_be_meant_changes_nothing(
    stack: Stack, component: str, body: Any, status: int, field: str
) -> None:
    answer = await patch(stack, component, body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error.get("field", "")) == (status, "bad_input", field)
    assert (await explained(stack, component))["policy"] == DEFAULTS


async def test_min_over_the_max_that_is_there_is_refused(stack: Stack, component: str) -> None:
    await patch(stack, component, {"max": 2})
    error = (await patch(stack, component, {"min": 3})).json()["error"]
    assert (error["field"], error["message"]) == ("max", "max: expected at least min, which is 3, or 0, got 2")
    await Registry(stack.broker, AUTOSCALE).delete(component)


async def test_only_an_admin_changes_settings(stack: Stack, component: str) -> None:
    assert (await patch(stack, component, {"min": 0}, token="x" * 20)).status_code == 403
    path = f"/components/{component}/autoscale"
    assert (await stack.clients[0].patch(path, json={"min": 0})).status_code == 401
    broken = {"Authorization": f"Bearer {stack.admin}", "Content-Type": "application/json"}
    assert (await stack.clients[0].patch(path, content=b"{", headers=broken)).status_code == 400


@pytest.mark.parametrize("name", ["nothing", "a.b", "*", "%20"])
async def test_a_component_that_is_not_there(stack: Stack, name: str) -> None:
    for answer in (
        await stack.clients[0].get(f"/components/{name}/autoscale"),
        await patch(stack, name, {"min": 1}),
    ):
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_component")


async def test_decisions_newest_first(stack: Stack, component: str) -> None:
    registry = Registry(stack.broker, DECISIONS)
    for number in (1, 2):
        decision = ScaleDecision(
            component=component,
            at=time.time(),
            before=number,
            replicas=number + 1,
            asked=9,
            rule="rate",
            why=f"reason {number}",
            pending={"interactive": 3, "batch": 0},
            in_flight={"interactive": 1, "batch": 2},
            policy=ScalePolicy(max=8, target=4),
        )
        await registry.put(component, encode(decision))
    newest, oldest = (await explained(stack, component))["decisions"]
    assert (newest["why"], oldest["why"]) == ("reason 2", "reason 1")
    assert newest["policy"] == DEFAULTS | {"max": 8, "target": 4}
    assert newest["in_flight"] == {"interactive": 1, "batch": 2}
    assert "v" not in newest
