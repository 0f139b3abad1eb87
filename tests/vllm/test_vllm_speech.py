"""Qwen2.5-Omni with its thinker on vLLM, on real processes: speech of hidden states, also of a thinker that dies."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Final

import pytest

from components.generator.pcm import pcm_of
from cornstalk.client import AsyncClient
from cornstalk.tasks.omni import Omni, Thinker
from tests.omni.conftest import folder, whole
from tests.omni.test_omni import LIMITS, SOUNDS, TEXTS, ask, nodes
from tests.omni.test_thinker import noise
from tests.omni.tiny_omni import Whole
from tests.stack import Stack
from tests.vllm.conftest import ARGUMENTS

__all__ = ["folder", "whole"]
pytestmark = [pytest.mark.models, pytest.mark.filterwarnings("ignore:::torch", "ignore:::transformers")]

APP: Final = """
from cornstalk import App
from cornstalk.tasks.omni import Omni, Reply, Said, Thinker

MODEL = {model!r}


class Spoken(Omni):
    def invoke(self, said: Said) -> Reply:
        heard = [] if said.audio is None else [self.ear(audio=said.audio).rows]
        thought = self.thinker(prompt=said.text, audio=heard, max_tokens=said.max_tokens)
        codes = self.talker(rows=thought.rows, max_codes=said.max_codes).codes
        return Reply(text=thought.text, speech=self.vocoder(codes=codes, whole=True).audio)


thinker = Thinker(model=MODEL, dtype="float32", engine="vllm", engine_args={arguments!r})
app = App("spoken", Spoken(MODEL, "float32", thinker=thinker))
"""
STARTS_WITHIN: Final = 400.0
"""Seconds: two engines at once on two cores."""


async def test_what_is_thought_on_vllm_is_said_as_the_whole_model_says_it(
    folder: Path, whole: Whole, tmp_path: Path
) -> None:
    """Text token for token, sound bit for bit, eight at once. One of two thinkers dies in mid-stream."""
    (tmp_path / "spoken.py").write_text(APP.format(model=str(folder), arguments=ARGUMENTS))
    thinker = Thinker(model=str(folder), dtype="float32", engine="vllm", engine_args=ARGUMENTS)
    parts = Omni(str(folder), "float32", thinker=thinker)
    doomed = f"{thinker.component}@0"
    env = {"VLLM_CPU_KVCACHE_SPACE": "1"}
    said = [(text, None) for text in TEXTS] + [("the dog and", noise(*sound)) for sound in SOUNDS]
    async with Stack(env=env, crash={doomed: "worker.chunk"}) as stack:
        await stack.deploy(tmp_path / "spoken.py", workers=False)
        for task in (parts.ear, parts.talker, parts.vocoder, thinker):
            stack.start_workers(task.component)
        for task in (parts.ear, parts.talker, parts.vocoder, thinker):
            await stack.wait_workers(task.component, stack.replicas, within=STARTS_WITHIN)
        async with AsyncClient(f"http://127.0.0.1:{stack.ports[0]}") as client:
            answers = await asyncio.gather(*(ask(client, "spoken", text, sound, **LIMITS) for text, sound in said))
        assert stack.children[doomed].wait(5.0) == -signal.SIGKILL
        seeds = [await nodes(stack, answer.request) for answer in answers]
    for (text, sound), answer, found in zip(said, answers, seeds, strict=True):
        right = await asyncio.to_thread(
            whole.answer,
            text,
            sound,
            seeds=(found["talker"].seed, found["vocoder"].seed),
            tokens=LIMITS["max_tokens"],
            codes=LIMITS["max_codes"],
        )
        assert answer.response["text"] == right.text.rstrip("\ufffd")
        assert answer.response["speech"] == pcm_of(right.wave.numpy())
