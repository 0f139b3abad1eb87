"""Values over what a message carries: right answers, small messages, on any gateway and after a crash."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest
import pytest_asyncio

from broker.facts import Facts
from broker.subjects import parse_run
from tests.e2e.apps import APPS, large
from tests.stack import Stack
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMIT: Final = 256 * 1024
PROMPT: Final = "A long story. " * 22_000
ITEMS: Final = [f"item {i} " * 20 for i in range(2000)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    async with Stack(gateways=2) as running:
        await running.deploy(APPS / "large.py")
        yield running


async def sizes(stack: Stack, request: str) -> dict[str, int]:
    """Bytes of the largest stored fact of each kind."""
    found: dict[str, int] = {}
    for stored in (await Facts(stack.broker).read(request)).messages:
        kind = parse_run(stored.subject).kind
        found[kind] = max(found.get(kind, 0), len(stored.data))
    return found


async def test_a_long_prompt_and_long_outputs(stack: Stack) -> None:
    answer = await stack.clients[0].post("/apps/large", json={"text": PROMPT, "items": ITEMS})
    assert answer.status_code == 200, answer.text[:500]
    body = answer.json()
    expected = large(PROMPT, ITEMS)
    assert len(PROMPT) > 300 * 1024
    assert len(expected["long"]) >= 500 * 1024
    assert body["response"] == expected
    stored = await sizes(stack, body["request"])
    assert stored.keys() == {"accepted", "graph", "first", "node-end", "end"}
    assert max(stored.values()) < LIMIT, stored
    told = (await stack.clients[1].get(f"/requests/{body['request']}")).json()
    assert told["response"] == expected
    events = await stack.clients[1].get(f"/requests/{body['request']}/events")
    last = events.text.strip().rpartition("\n\n")[2]
    assert json.loads(last.partition("data: ")[2])["response"] == expected


async def test_values_that_only_together_are_large(stack: Stack) -> None:
    """Twenty of 62 KiB each go into one call: 1.2 MiB, over what a message carries."""
    answer = await stack.clients[0].post("/apps/large", json={"text": "sum", "repeat": 1, "pieces": 3, "words": 2000})
    assert answer.status_code == 200, answer.text[:500]
    assert answer.json()["response"] == large("sum", repeat=1, pieces=3, words=2000)
    stored = await sizes(stack, answer.json()["request"])
    assert max(stored.values()) < LIMIT, stored


async def test_several_at_once_with_equal_and_other_values(stack: Stack) -> None:
    prompts = [PROMPT, PROMPT[1:], PROMPT, "short"]
    answers = await asyncio.gather(
        *(stack.clients[i % 2].post("/apps/large", json={"text": p, "pieces": 200}) for i, p in enumerate(prompts))
    )
    assert [a.json()["response"] for a in answers] == [large(p, pieces=200) for p in prompts]


async def test_a_pass_of_many_calls_is_stored_in_parts(stack: Stack) -> None:
    answer = await stack.clients[0].post("/apps/large", json={"text": "many", "repeat": 1, "pieces": 3, "calls": 600})
    assert answer.json()["response"] == large("many", repeat=1, pieces=3, calls=600)
    stored = await sizes(stack, answer.json()["request"])
    assert max(stored.values()) < LIMIT, stored
    log = (await Facts(stack.broker).read(answer.json()["request"])).messages
    assert sum(parse_run(m.subject).kind == "graph" for m in log) > 4


async def test_the_same_key_and_long_input_is_the_same_request(stack: Stack) -> None:
    async def ask(gateway: int, **changes: Any) -> Any:
        body = {"text": PROMPT, "items": ITEMS, "pieces": 10} | changes
        answer = await stack.clients[gateway].post("/apps/large", json=body, headers={"Idempotency-Key": "long"})
        return answer.json()

    one, two = await ask(0), await ask(1)
    assert one["request"] == two["request"]
    assert one["response"] == two["response"] == large(PROMPT, ITEMS, pieces=10)
    assert (await ask(1, items=[*ITEMS[:-1], "other"]))["error"]["field"] == "Idempotency-Key"


async def test_another_gateway_goes_on(stack: Stack) -> None:
    """Everything it needs is stored: the input, the outputs, what was made of them."""
    body = {"text": PROMPT, "items": ITEMS, "pieces": 2000}
    headers = {"Accept": "text/event-stream", "Cornstalk-Resume-Grace": "30"}
    async with stack.clients[0].stream("POST", "/apps/large", json=body, headers=headers) as response:
        request = response.headers["cornstalk-request"]
        stack.children["gateway0"].kill()
        stack.children["gateway0"].wait(10)
        with pytest.raises(Exception):  # noqa: B017
            await response.aread()
    rest = await stack.clients[1].get(f"/requests/{request}/events")
    last = rest.text.strip().rpartition("\n\n")[2]
    assert json.loads(last.partition("data: ")[2])["response"] == large(PROMPT, ITEMS, pieces=2000)
    stack.children["gateway0"].start()
    await stack.wait_ready(0)


async def test_an_input_over_its_limit_is_refused(stack: Stack) -> None:
    answer = await stack.clients[0].post("/apps/large", json={"text": "x", "items": ["y" * (1 << 20)] * 9})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")


async def test_nobody_died_of_it(stack: Stack) -> None:
    await eventually(lambda: all(child.alive for child in stack.children.values()))
