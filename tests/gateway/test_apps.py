"""Deploying: who may, what is refused and why, versions, components that apps share, and how they go."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from broker.topology import components as queues
from broker.topology import remove_component
from cornstalk.tasks.null import Null
from gateway.options import read_options
from tests.e2e.apps import APPS, digest_of
from tests.gateway.raw import exchange, post
from tests.gateway.sse import live
from tests.stack import Stack
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

APP = """
from pydantic import BaseModel
from cornstalk import App, CompositeTask, Tensor
from cornstalk.tasks.null import Null

class Ask(BaseModel):
    text: str
    service_ms: float = 0.0

class Reply(BaseModel):
    digest: str
    version: str

class Task(CompositeTask):
    value = Null(name="{component}")
    def invoke(self, q: Ask) -> Reply:
        first = self.value(text=q.text, service_ms=q.service_ms).digest
        if not first:
            raise RuntimeError
        return Reply(digest=self.value(text=first).digest, version="{version}")

app = App("{name}", Task())
"""


def source(name: str, component: str, version: str = "1") -> str:
    return APP.format(name=name, component=component, version=version)


def answer(text: str, component: str, version: str = "1") -> dict[str, str]:
    value = Null(name=component)
    return {"digest": digest_of(value, text=digest_of(value, text=text)), "version": version}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    async with Stack(gateways=2) as running:
        yield running


async def deploy(stack: Stack, text: str) -> dict[str, Any]:
    path = stack.home / "app.py"
    path.write_text(text)
    return await stack.deploy(path)


async def remove(stack: Stack, name: str) -> dict[str, Any]:
    response = await stack.clients[1].delete(f"/apps/{name}", headers={"Authorization": f"Bearer {stack.admin}"})
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


async def users(stack: Stack) -> dict[str, list[str]]:
    found = (await stack.clients[1].get("/components")).json()["components"]
    return {c["id"]: c["apps"] for c in found}


@pytest.mark.parametrize(
    ("token", "status", "code"),
    [
        (None, 401, "unauthorized"),
        ("Basic {}", 401, "unauthorized"),
        ("{}", 401, "unauthorized"),
        ("Bearer", 403, "forbidden"),
        ("Bearer wrong", 403, "forbidden"),
        ("Bearer {}x", 403, "forbidden"),
        ("Bearer \xe9", 403, "forbidden"),
    ],
)
async def test_only_the_admin_deploys_and_removes(stack: Stack, token: str | None, status: int, code: str) -> None:
    headers = {} if token is None else {"Authorization": token.format(stack.admin).encode("latin-1")}
    for method, path in (("POST", "/apps"), ("DELETE", "/apps/any")):
        response = await stack.clients[0].request(method, path, content=source("any", "any"), headers=headers)
        assert (response.status_code, response.json()["error"]["code"]) == (status, code)
        assert ("www-authenticate" in response.headers) == (status == 401)
    assert (await stack.clients[0].get("/apps")).json() == {"apps": []}


@pytest.mark.parametrize(
    ("text", "status", "code", "line", "said"),
    [
        ("", 422, "bad_app", 0, "defines no app"),
        ("x = 1\ndef f(:\n", 422, "bad_app", 2, "app.py:2"),
        ("\n\n1 / 0\n", 422, "bad_app", 3, "ZeroDivisionError"),
        ("import no_such_module\n", 422, "bad_app", 1, "no_such_module"),
        ("import sys\nsys.exit(1)\n", 422, "bad_app", 2, "SystemExit"),
        ("raise ValueError('\\ud800' * 5000)\n", 422, "bad_app", 1, "ValueError"),
        ("class E(Exception):\n    def __str__(self):\n        raise KeyError\nraise E\n", 422, "bad_app", 4, "E: "),
        ("def f(): f()\nf()\n", 422, "bad_app", 1, "RecursionError"),
        ("(" * 1000, 422, "bad_app", 1, "parenthes"),
        ("a\0b", 422, "bad_app", 0, "null bytes"),
        (b"\xff\xfe", 422, "bad_input", 0, "UTF-8"),
        (source("Not A Name", "c"), 422, "bad_app", 22, "lower-case letters"),
        (source("a.b", "c"), 422, "bad_app", 22, "lower-case letters"),
        (source("ok", "c").replace("q: Ask", "q: str"), 422, "bad_app", 22, "pydantic model"),
        (source("ok", "c").replace("version: str", "version: Tensor"), 422, "bad_app", 0, "no JSON schema"),
        ("#" * 300_000, 413, "too_large", 0, "at most 262144 bytes"),
    ],
)
async def test_a_bad_app_file(stack: Stack, text: str | bytes, status: int, code: str, line: int, said: str) -> None:
    headers = {"Authorization": f"Bearer {stack.admin}"}
    response = await stack.clients[0].post("/apps", content=text, headers=headers)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error.get("line", 0)) == (status, code, line), error
    assert said in error["message"]
    assert len(error["message"]) < 2100
    assert (await stack.clients[0].get("/apps")).json() == {"apps": []}


async def test_a_new_version_serves_new_requests_and_running_ones_end_on_the_old(stack: Stack) -> None:
    a, b = stack.clients
    old = await deploy(stack, source("versioned", "versioned", "old"))
    headers = {"Accept": "text/event-stream", "Cornstalk-Resume-Grace": "30"}
    body = {"text": "slow", "service_ms": 1500}
    async with a.stream("POST", "/apps/versioned", json=body, headers=headers) as here:
        request = here.headers["cornstalk-request"]
        new = await deploy(stack, source("versioned", "versioned", "new"))
        assert new["components"] == old["components"]
        assert new["version"] != old["version"]
        for client in (a, b):
            fast = await client.post("/apps/versioned", json={"text": "fast"})
            assert fast.json()["response"] == answer("fast", "versioned", "new")
        stack.children["gateway0"].kill()  # what runs on the old version is adopted on the old version
        stack.children["gateway0"].wait(10)
    async with b.stream("GET", f"/requests/{request}/events") as there:
        *_, last = [event async for event in live(there)]
    assert last["data"]["response"] == answer("slow", "versioned", "old")
    stack.children["gateway0"].start()
    await stack.wait_ready(0)
    listed = (await a.get("/apps")).json()["apps"]
    assert [(app["name"], app["version"]) for app in listed] == [("versioned", new["version"])]
    assert listed[0]["request"]["properties"].keys() == {"text", "service_ms"}
    await remove(stack, "versioned")


async def test_two_apps_share_a_component_and_the_last_one_takes_it_along(stack: Stack) -> None:
    one, two = await deploy(stack, source("one", "shared")), await deploy(stack, source("two", "shared"))
    assert one["components"] == two["components"]
    (component,) = one["components"]
    assert sum(name.startswith(component) for name in stack.children) == 2
    assert (await users(stack))[component] == ["one", "two"]
    assert (await queues(stack.broker)).count(component) == 1
    for name in ("one", "two"):
        response = await stack.clients[0].post(f"/apps/{name}", json={"text": name})
        assert response.json()["response"] == answer(name, "shared")

    assert (await remove(stack, "one"))["drains"] == []
    assert (await stack.clients[0].post("/apps/one", json={"text": "x"})).status_code == 404

    async def is_of_two() -> bool:
        return (await users(stack))[component] == ["two"]

    await eventually(is_of_two, within=5)
    response = await stack.clients[1].post("/apps/two", json={"text": "still"})
    assert response.json()["response"] == answer("still", "shared")

    slow, stream = {"text": "last", "service_ms": 2000}, {"Accept": "text/event-stream"}
    async with stack.clients[0].stream("POST", "/apps/two", json=slow, headers=stream) as running:
        assert running.status_code == 200  # it is accepted
        assert (await remove(stack, "two"))["drains"] == [component]
        assert (await stack.clients[1].post("/apps/two", json={"text": "x"})).json()["error"]["code"] == "unknown_app"
        assert component in await queues(stack.broker)
        *_, last = [event async for event in live(running)]
    assert last["data"]["response"] == answer("last", "shared")
    await eventually(lambda: _is_gone(stack, component), within=10)


async def _is_gone(stack: Stack, component: str) -> bool:
    return component not in await users(stack) and component not in await queues(stack.broker)


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_request_on_its_way_in_while_its_app_goes_ends_right(stack: Stack, replaced: bool) -> None:
    """Its body comes after the app was removed, or replaced by one of other components, and nobody else needs them."""
    name = f"leaving-{replaced}".lower()
    (component,) = (await deploy(stack, source(name, name)))["components"]
    invited, gone = asyncio.Event(), asyncio.Event()
    body = json.dumps({"text": "late"}).encode()
    head = post(f"/apps/{name}", body, Expect="100-continue").removesuffix(body)

    async def late() -> AsyncIterator[bytes]:
        await gone.wait()
        yield body

    asking = asyncio.create_task(exchange(stack.ports[0], head, late(), invited=invited))
    await asyncio.wait_for(invited.wait(), 10)
    if replaced:
        await deploy(stack, source(name, f"{name}-2"))
    else:
        await remove(stack, name)
    await eventually(lambda: _is_gone(stack, component), within=10)
    gone.set()
    assert json.loads((await asking).body)["response"] == answer("late", name)
    await eventually(lambda: _is_gone(stack, component), within=10)
    if replaced:
        await remove(stack, name)


async def test_a_queue_that_somebody_deleted_is_made_again(stack: Stack) -> None:
    """Until then a request can be cancelled, and its client hears of it."""
    (component,) = (await deploy(stack, source("robbed", "robbed")))["components"]
    operator = stack.children["operator"]
    operator.kill(signal.SIGSTOP)
    await remove_component(stack.broker, component)
    key = {"Idempotency-Key": "robbed"}
    asking = asyncio.create_task(stack.clients[0].post("/apps/robbed", json={"text": "x"}, headers=key))
    request = read_options("robbed", {"idempotency-key": "robbed"}).request

    async def cancelled() -> bool:
        return (await stack.clients[1].delete(f"/requests/{request}")).status_code == 202

    await eventually(cancelled, within=5)
    assert (await asyncio.wait_for(asking, 5)).json()["status"] == "cancelled"
    asking = asyncio.create_task(stack.clients[0].post("/apps/robbed", json={"text": "x"}))
    operator.kill(signal.SIGCONT)
    assert (await asking).json()["response"] == answer("x", "robbed")
    await remove(stack, "robbed")


async def test_what_was_removed_can_be_deployed_again(stack: Stack) -> None:
    (component,) = (await deploy(stack, source("again", "again")))["components"]
    await remove(stack, "again")

    async def is_gone() -> bool:
        return component not in await users(stack)

    await eventually(is_gone, within=10)
    workers = [c for n, c in stack.children.items() if n.startswith(component)]
    for child in workers:  # a supervisor ends them when the component is gone, and starts them when it is there
        child.kill()
        child.wait(10)
    path = stack.home / "again.py"
    path.write_text(source("again", "again", "2"))
    await stack.deploy(path, workers=False)
    for child in workers:
        child.start()
    response = await stack.clients[0].post("/apps/again", json={"text": "new"})
    assert response.json()["response"] == answer("new", "again", "2")


async def test_names_are_taken_as_they_are(stack: Stack) -> None:
    for name in ("a", "0", "a-b_c", "x" * 64):
        await deploy(stack, source(name, "named"))
        response = await stack.clients[1].post(f"/apps/{name}", json={"text": name})
        assert response.json()["response"] == answer(name, "named")
    assert [app["name"] for app in (await stack.clients[0].get("/apps")).json()["apps"]][:2] == ["0", "a"]
    missing = await stack.clients[0].delete("/apps/nobody", headers={"Authorization": f"Bearer {stack.admin}"})
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "unknown_app")


async def test_a_request_model_of_any_kind_is_taken_or_refused_at_the_door(stack: Stack) -> None:
    await stack.deploy(APPS / "odd.py")
    client = stack.clients[0]
    for body in ({"text": "x"}, {"Text": "x"}):
        assert (await client.post("/apps/odd", json=body)).json()["response"] == {
            "digest": digest_of(Null(name="value"), text="x")
        }
    for field, said in (
        ("doubled", "changes 'doubled' each time"),
        ("broken", "validator of its request model raised KeyError"),
    ):
        response = await client.post("/apps/odd", json={"text": "x", field: 1})
        assert (response.status_code, response.json()["error"]["code"]) == (422, "bad_app")
        assert said in response.json()["error"]["message"]


@pytest.mark.parametrize("text", ["raise", "answer", "ask"])
async def test_what_user_code_says_is_told_whatever_it_is(stack: Stack, text: str) -> None:
    await stack.deploy(APPS / "odd.py")
    response = await stack.clients[0].post("/apps/odd", json={"text": text}, headers={"Cornstalk-Deadline": "10"})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (500, "app_failed")
    assert "ud800" in error["message"]
    assert len(error["message"]) < 2200


async def test_a_deploy_tells_what_the_lint_warns_of(stack: Stack) -> None:
    source = (
        (APPS / "one.py")
        .read_text()
        .replace("        digest = self", '        print("no harm, but once in each pass")\n        digest = self')
    )
    deployed = await stack.clients[0].post(
        "/apps", content=source.encode(), headers={"Authorization": f"Bearer {stack.admin}"}
    )
    assert deployed.status_code == 201
    assert any("print" in warning for warning in deployed.json()["warnings"]), deployed.json()
