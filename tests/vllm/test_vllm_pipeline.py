"""Requests through gateways, NATS and two workers with vLLM, of which one is killed in mid-stream: all are answered as
the transformers engine answers them.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from components.llm.transformers_engine import TransformersEngine
from cornstalk.tasks import LLM
from tests.components.fake_call import FakeCall
from tests.components.llm_suite import CITY, PARIS, PROMPTS, SCHEMAS, joined
from tests.stack import Stack
from tests.vllm.talk import app
from tests.waiting import eventually

pytestmark = [pytest.mark.models, pytest.mark.filterwarnings("ignore:::torch", "ignore:::transformers")]

QUESTIONS: Final[list[dict[str, Any]]] = [
    {"text": PARIS},
    {"text": PROMPTS[1], "max_tokens": 12, "logprobs": 1},
    {"text": PROMPTS[5], "max_tokens": 12, "frequency_penalty": 0.5},
    {"text": CITY, "json_schema": SCHEMAS[0]},
]
STARTS_WITHIN: Final = 300.0
"""Seconds: two engines at once on two cores."""


@pytest_asyncio.fixture
async def reference() -> AsyncIterator[TransformersEngine]:
    engine = TransformersEngine(LLM(dtype="float32"))
    await engine.start()
    yield engine
    await engine.stop()


async def test_a_worker_dies_in_mid_stream_and_every_answer_is_right(reference: TransformersEngine) -> None:
    (component,) = app.components()
    doomed, env = f"{component}@0", {"VLLM_CPU_KVCACHE_SPACE": "1"}
    async with Stack(gateways=2, env=env, crash={doomed: "worker.first"}) as stack:
        await stack.deploy(Path(__file__).with_name("talk.py"), workers=False)
        stack.start_workers(component)
        await stack.wait_workers(component, 2, within=STARTS_WITHIN)
        answers = await asyncio.gather(*(ask(stack, i % 2, q) for i, q in enumerate(QUESTIONS)))
        await eventually(lambda: not stack.children[doomed].alive, within=5.0)
        assert stack.children[doomed].wait(0) == -signal.SIGKILL
    for question, answer in zip(QUESTIONS, answers, strict=True):
        inputs = dict(question)
        call = FakeCall(prompt=inputs.pop("text"), **inputs)
        await reference.run(call)
        assert answer["text"] == call.text
        expected = joined(call, "logprobs")
        assert [one["token"] for one in answer["logprobs"]] == [one["token"] for one in expected]
        assert [one["logprob"] for one in answer["logprobs"]] == pytest.approx(
            [one["logprob"] for one in expected], abs=1e-2
        )


async def ask(stack: Stack, gateway: int, question: dict[str, Any]) -> dict[str, Any]:
    response = await stack.clients[gateway].post("/apps/talk", json=question, timeout=120)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()["response"]
    return answer
