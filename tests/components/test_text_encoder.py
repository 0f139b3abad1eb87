"""Texts as vectors, as transformers makes them of one text alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from components.encoder.text import TextEncoderEngine
from cornstalk.errors import EngineError, SetupError
from cornstalk.tasks import TextEncoder
from tests.components.fake_call import FakeCall
from tests.components.tiny_text import PROMPTS, tiny_text, vector_of

pytestmark = pytest.mark.models
TEXTS = ["the cat sat", "on the mat", "the dog", "a log", "the cat sat on the mat and the dog", "the cat sat"]


@asynccontextmanager
async def started(folder: Path) -> AsyncIterator[TextEncoderEngine]:
    engine = TextEncoderEngine(TextEncoder(model=str(folder), dtype="float32"))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


async def vector(engine: TextEncoderEngine, text: str, prompt: str = "") -> Any:
    made = await engine.run(FakeCall(text=text, prompt=prompt))
    assert made["tokens"] > 0
    return np.array(made["vector"], np.float32)


@pytest.mark.parametrize(
    ("kind", "pooling", "normalize"),
    [("bert", "mean_tokens", True), ("bert", "cls_token", False), ("qwen3", "lasttoken", True)],
)
async def test_vectors_are_those_of_transformers_alone_and_in_company(
    tmp_path: Path, kind: str, pooling: str, normalize: bool
) -> None:
    folder = tiny_text(tmp_path / "m", kind, pooling, normalize=normalize)
    async with started(folder) as engine:
        alone = [await vector(engine, text) for text in TEXTS]
        together = await asyncio.gather(*(vector(engine, text) for text in TEXTS * 2))
        asked = await vector(engine, TEXTS[0], "query")
    for text, one, other in zip(TEXTS * 2, alone * 2, together, strict=True):
        right = vector_of(folder, pooling, text, normalize=normalize)
        np.testing.assert_allclose(one, right, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(other, right, rtol=1e-4, atol=1e-5)
    right = vector_of(folder, pooling, PROMPTS["query"] + TEXTS[0], normalize=normalize)
    np.testing.assert_allclose(asked, right, rtol=1e-4, atol=1e-5)


async def test_texts_of_one_length_share_steps(tmp_path: Path) -> None:
    async with started(tiny_text(tmp_path / "m", "bert", "mean_tokens")) as engine:
        await asyncio.gather(*(vector(engine, "the cat sat") for _ in range(16)))
        assert engine.stats()["largest_batch"] >= 4


async def test_bad_texts_fail_alone(tmp_path: Path) -> None:
    async with started(tiny_text(tmp_path / "m", "bert", "mean_tokens", longest=8)) as engine:
        for text, prompt, code in (("the " * 40, "", "too_long"), ("a", "unknown", "bad_input")):
            good = asyncio.create_task(vector(engine, "the cat"))
            with pytest.raises(EngineError) as caught:
                await vector(engine, text, prompt)
            assert caught.value.engine_code == code
            assert (await good).shape == (64,)


def spoil(folder: Path, change: str) -> None:
    modules = folder / "modules.json"
    pooling = folder / "1_Pooling" / "config.json"
    match change:
        case "no modules":
            modules.unlink()
        case "dense":
            entries = json.loads(modules.read_text())
            modules.write_text(json.dumps([*entries, {"idx": 3, "path": "3_Dense", "type": "x.Dense"}]))
        case "pooling":
            pooling.write_text(json.dumps({"pooling_mode_max_tokens": True}))
        case "malformed":
            pooling.write_text("{")
        case "truncated":
            weights = folder / "model.safetensors"
            weights.write_bytes(weights.read_bytes()[:-1000])
        case "one layer more":
            config = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
        case "no tokenizer":
            for path in folder.glob("token*"):
                path.unlink()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("no modules", "modules.json"),
        ("dense", "Dense"),
        ("pooling", "pools by pooling_mode_max_tokens"),
        ("malformed", "cannot be read"),
        ("truncated", "cannot be loaded"),
        ("one layer more", "lacks 16 weights"),
        ("no tokenizer", "vocabulary is missing"),
    ],
)
async def test_a_folder_that_cannot_work_says_why(tmp_path: Path, change: str, says: str) -> None:
    folder = tiny_text(tmp_path / "m", "bert", "mean_tokens")
    spoil(folder, change)
    with pytest.raises(SetupError, match=says):
        async with started(folder):
            pass
