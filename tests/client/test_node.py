"""The modules of docs/clients.md and EventSource in Node 20, over cut connections: nothing twice, nothing lost."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.facts import Facts
from broker.subjects import parse_run
from cornstalk import AsyncClient
from tests.client.conftest import urls_of
from tests.client.nodejs import NODE
from tests.client.proxy import CuttingProxy
from tests.client.standin.standin import WORDS
from tests.client.standin.standin import spoken as speech_of
from tests.client.test_docs import MODULE, MODULES
from tests.e2e.apps import APPS
from tests.stack import Stack
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

ASK = Path(__file__).parent / "node" / "ask.mjs"
TEXT = "".join(WORDS)


def cuts_of(seed: int, most: int) -> Iterator[int | None]:
    rng = random.Random(seed)
    yield from (rng.randrange(most) for _ in range(5))
    while True:
        yield None


async def node(folder: Path, how: str, *urls: str) -> dict[str, Any]:
    for module in MODULES:
        (folder / MODULE.findall(module.code)[0]).write_text(module.code)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*NODE, str(ASK), str(folder), how, *urls, stdout=pipe, stderr=pipe)
    out, err = await asyncio.wait_for(process.communicate(), 40)
    assert (process.returncode, err.decode()) == (0, "")
    heard: dict[str, Any] = json.loads(out)
    return heard


@pytest.mark.parametrize("seed", range(3))
async def test_fetch_through_cuts(spoken: Stack, tmp_path: Path, seed: int) -> None:
    async with (
        CuttingProxy(spoken.ports[0], cuts_of(seed, 4000)) as first,
        CuttingProxy(spoken.ports[1], cuts_of(seed + 50, 4000)) as second,
    ):
        heard = await node(tmp_path, "stream", first.url, second.url)
        assert first.resets + second.resets >= 2
    assert (heard["text"], heard["bytes"]) == (TEXT, len(speech_of(TEXT)))
    assert heard["response"] == {"question": "hello"}


async def test_eventsource_comes_back_after_a_cut(spoken: Stack, tmp_path: Path) -> None:
    """That of Node 20 is an experiment: it gives up when it cannot connect again at once."""
    async with CuttingProxy(spoken.ports[0], iter([600, None, None])) as proxy:
        heard = await node(tmp_path, "watch", proxy.url, urls_of(spoken)[1])
        assert proxy.resets == 1
    assert (heard["text"], heard["response"]) == (TEXT, {"question": "hello", "speech": ""})


@pytest.mark.parametrize("seed", range(4))
async def test_websocket_through_cuts(spoken: Stack, tmp_path: Path, seed: int) -> None:
    """Sound in binary frames and text in both directions at once; cut while it is said and while it is told."""
    asked = cuts_of(seed + 100, 6000)
    async with (
        CuttingProxy(spoken.ports[0], cuts_of(seed, 6000), asked) as first,
        CuttingProxy(spoken.ports[1], cuts_of(seed + 50, 6000), asked) as second,
    ):
        heard = await node(tmp_path, "speak", first.url, second.url)
        assert first.resets + second.resets >= 2
    assert heard["said"] == heard["text"]
    assert heard["sound"] == heard["saidSound"]
    assert heard["response"] == {}


async def test_websocket_says_what_is_wrong(spoken: Stack, tmp_path: Path) -> None:
    heard = await node(tmp_path, "wrong", *urls_of(spoken))
    assert heard["field"] == "title"
    assert heard["closed"] == "refused: 4404"
    assert heard["broken"] == "the microphone is gone"


async def test_leaving_the_loop_cancels(spoken: Stack, tmp_path: Path) -> None:
    before = await stored(spoken)
    heard = await node(tmp_path, "leave", *urls_of(spoken))
    assert heard["pieces"] == 1
    [request] = await stored(spoken) - before
    async with AsyncClient(urls_of(spoken)) as client:

        async def cancelled() -> bool:
            return bool((await client.status(request))["status"] == "cancelled")

        await eventually(cancelled, within=3)


async def stored(stack: Stack) -> set[str]:
    """The requests that are stored."""
    return {parse_run(fact.subject).request async for fact in Facts(stack.broker).accepted()}


async def test_fields_that_come_from_one_output_have_all_its_pieces(spoken: Stack, tmp_path: Path) -> None:
    await spoken.deploy(APPS / "twice.py")
    heard = await node(tmp_path, "twice", *urls_of(spoken))
    told = heard["stream"]
    assert told["text"] == told["again"] == told["parts.0.text"] != told["other"]
    assert heard["speak"] == told
