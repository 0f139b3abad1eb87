"""The debate on real processes and real weights: two speakers are two components, and the judge shares one of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from broker.subjects import work_stream
from cornstalk.cli.paths import examples
from cornstalk.tasks import LLM
from tests.components.tiny_lm import tiny_model
from tests.stack import Stack

pytestmark = [pytest.mark.models, pytest.mark.asyncio(loop_scope="module")]

ANN, BOB = LLM(dtype="float32"), LLM(dtype="bfloat16")
CLAIM = {"claim": "Cats are better than dogs.", "rounds": 1}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    async with Stack() as running:
        yield running


async def components_of(stack: Stack, body: dict[str, Any]) -> dict[str, str]:
    nodes = (await stack.clients[0].get(f"/requests/{body['request']}")).json()["nodes"]
    at_work = {c["id"]: {w["worker"] for w in c["workers"]} for c in await listed(stack)}
    assert all(n["worker"] in at_work[n["component"]] for n in nodes)
    return {n["id"]: n["component"] for n in nodes}


async def listed(stack: Stack) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await stack.clients[0].get("/components")).json()["components"]
    return found


async def debate(stack: Stack, app: str) -> dict[str, Any]:
    answer = await stack.clients[0].post(f"/apps/{app}", json=CLAIM, headers={"Cornstalk-Deadline": "110"}, timeout=120)
    body: dict[str, Any] = answer.json()
    assert answer.status_code == 200, body
    assert [speech.partition(": ")[0] for speech in body["response"]["speeches"]] == ["Ann", "Bob"]
    return body


async def test_two_speakers_are_two_components(stack: Stack) -> None:
    deployed = await stack.deploy(examples() / "debate.py")
    assert sorted(deployed["components"]) == sorted([ANN.component, BOB.component])
    for component in deployed["components"]:
        await stack.broker.js.stream_info(work_stream(component))  # a queue of its own; raises if there is none
    body = await debate(stack, "debate")
    assert await components_of(stack, body) == {
        "ann#0": ANN.component,
        "bob#0": BOB.component,
        "judge#0": ANN.component,
    }
    ann, bob = (speech.partition(": ")[2] for speech in body["response"]["speeches"])
    assert min(len(ann), len(bob)) > 20
    assert ann != bob


async def test_with_a_mind_of_his_own(stack: Stack, tmp_path: Path) -> None:
    """As the example says: another model by its folder."""
    mind = LLM(model=str(tiny_model(tmp_path / "minds" / "bob", "qwen2", max_position_embeddings=1024)))
    source = (examples() / "debate.py").read_text()
    changed = source.replace('LLM(dtype="bfloat16")', f'LLM(model="{mind.model}")').replace(
        'App("debate"', 'App("minds"'
    )
    file = tmp_path / "minds.py"
    file.write_text(changed)
    assert sorted((await stack.deploy(file))["components"]) == sorted([ANN.component, mind.component])
    found = await components_of(stack, await debate(stack, "minds"))
    assert found == {"ann#0": ANN.component, "bob#0": mind.component, "judge#0": ANN.component}
