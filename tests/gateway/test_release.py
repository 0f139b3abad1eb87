"""A request that a gateway of another release began is never replayed here: it stays with its own, or expires."""

from __future__ import annotations

import asyncio
import time
import tomllib
import uuid
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from broker.facts import Facts
from broker.requests import Message
from broker.subjects import accepted, drive, finish, graph
from cornstalk.errors import OtherRelease
from cornstalk.messages import Accepted, Finish, Graph, decode, encode
from cornstalk.release import RELEASE, SDK, check_release
from gateway.options import read_options
from tests.e2e.apps import APPS
from tests.stack import ROOT, Stack
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

OTHER = "cornstalk 0.0, Python 3.9"
FROM_THERE = encode(Graph(index=0, release=OTHER))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    async with Stack() as running:
        yield running


async def begun_elsewhere(stack: Stack, version: str, seconds: float) -> Accepted:
    """A durable request whose first pass a gateway of another release has stored."""
    deadline = time.time() + seconds
    fact = Accepted(
        request=uuid.uuid4().hex,
        tenant="default",
        app="one",
        app_version=version,
        durable=True,
        deadline=deadline,
        input={"text": "there"},
    )
    facts = Facts(stack.broker)
    for subject, data in ((accepted(fact.request), encode(fact)), (graph(fact.request, 0), FROM_THERE)):
        assert (await facts.put(subject, data, deadline=deadline, ttl=600)).won
    return fact


async def test_it_is_refused_to_its_client_handed_back_to_the_others_and_expires(stack: Stack) -> None:
    deployed = await stack.deploy(APPS / "one.py")
    said: list[bytes] = []

    async def hear(message: Message) -> None:
        said.append(message.data)

    answers = await stack.broker.subscribe_core("$JS.ACK.DRIVE.drive.>", hear)
    request = await begun_elsewhere(stack, deployed["version"], seconds=4)
    await stack.broker.publish_stored(drive("one"), encode(request), deadline=time.time() + 5)
    refused = await stack.clients[0].get(f"/requests/{request.request}/events")
    async with asyncio.timeout(10):
        async for _ in refused.aiter_lines():
            pass
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "other_release")
    assert OTHER in refused.json()["error"]["message"]
    await eventually(lambda: any(data.startswith(b"-NAK") for data in said), within=5)
    facts = Facts(stack.broker)
    assert await facts.last(graph(request.request, 1)) is None
    ended = await eventually(lambda: facts.last(finish(request.request)), within=10)
    assert ended is not None
    assert decode(Finish, ended.data).status == "expired"
    await eventually(lambda: b"+ACK" in said, within=10)  # and nobody is offered it for ever
    await answers.close()


async def test_one_that_two_releases_begin_at_once_goes_on_with_the_first_and_is_answered_by_both(stack: Stack) -> None:
    await stack.deploy(APPS / "one.py")
    facts = Facts(stack.broker)
    request = read_options("one", {"idempotency-key": "both"}).request
    deadline = time.time() + 30
    assert (await facts.put(graph(request, 0), FROM_THERE, deadline=deadline, ttl=600)).won
    asking = asyncio.create_task(
        stack.clients[0].post("/apps/one", json={"text": "here"}, headers={"Idempotency-Key": "both"})
    )
    await eventually(lambda: facts.last(accepted(request)), within=10)
    await eventually(lambda: "is left to who drives it" in stack.logs(), within=10)
    assert await facts.last(graph(request, 1)) is None
    response = {"digest": "made there", "text": ""}
    end = Finish(status="done", response=response)
    assert (await facts.put(finish(request), encode(end), deadline=deadline, ttl=600)).won
    answer = await asking
    assert (answer.status_code, answer.json()["response"]) == (200, response)


async def test_what_counts_as_another_release() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert version.rpartition(".")[0] == SDK
    check_release([Graph(index=0), Graph(index=1, release=RELEASE)])
    with pytest.raises(OtherRelease, match=r"begun by cornstalk 0\.0, Python 3\.9"):
        check_release([Graph(index=0, release=RELEASE), Graph(index=1, release=OTHER)])
