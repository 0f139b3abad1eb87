"""Encoders and a model on vLLM in workers of their own, each with its half of the weights, say what the whole says."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

import pytest

from cornstalk.client import AsyncClient
from tests.components.media_files import picture
from tests.components.tiny_vl import EYES, WORDS, half, tiny_vl
from tests.components.whole_vl import WholeVL
from tests.stack import Stack
from tests.vllm.test_vllm_pictures import ASKS, PICTURES, TOKENS

pytestmark = [pytest.mark.models, pytest.mark.filterwarnings("ignore:::torch", "ignore:::transformers")]

APP: Final = """
from pydantic import BaseModel

from cornstalk import App, CompositeTask, Stream
from cornstalk.tasks import LLM, ImageEncoder, MultimodalLLM, Sight

ARGUMENTS = {{"max_model_len": 2048, "max_num_seqs": 4, "enforce_eager": True}}


class Said(BaseModel):
    text: Stream[str]


class See(CompositeTask):
    model = MultimodalLLM(
        LLM(model={words!r}, dtype="float32", engine="vllm", engine_args=ARGUMENTS),
        ImageEncoder(model={eyes!r}, dtype="float32"),
    )

    def invoke(self, request: Sight) -> Said:
        return Said(text=self.model(request))


app = App("see", See())
"""
STARTS_WITHIN: Final = 400.0
"""Seconds: two engines at once on two cores."""


async def test_pictures_go_from_encoders_to_vllm(tmp_path: Path) -> None:
    """Deepstack features too. Two workers of each; all requests at once."""
    folder = await asyncio.to_thread(tiny_vl, tmp_path / "model", "qwen3_vl")
    eyes, words = (half(folder, without) for without in (WORDS, EYES))
    file = tmp_path / "app.py"
    file.write_text(APP.format(words=words, eyes=eyes))
    env = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    async with Stack(sidecar_bytes=1 << 30, env=env) as stack:
        components: Any = (await stack.deploy(file, workers=False))["components"]
        for component in components:
            stack.start_workers(component)
        for component in components:
            await stack.wait_workers(component, stack.replicas, within=STARTS_WITHIN)
        async with AsyncClient(f"http://127.0.0.1:{stack.ports[0]}") as client:
            answers = await asyncio.gather(*(ask(client, *one) for one in ASKS))
    whole = await asyncio.to_thread(WholeVL, folder)
    expected = [whole.says([*(PICTURES[i] for i in which), prompt], TOKENS) for prompt, which in ASKS]
    assert [answer.response["text"] for answer in answers] == expected


async def ask(client: AsyncClient, prompt: str, which: tuple[int, ...]) -> Any:
    images = [picture(PICTURES[i], "PNG") for i in which]
    return await client.invoke("see", {"prompt": prompt, "images": images, "max_tokens": TOKENS})
