"""Texts as vectors through real NATS, sidecar and two workers."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pytest

from tests.components.tiny_text import tiny_text, vector_of
from tests.stack import Stack

pytestmark = pytest.mark.models
APP: Final = """
from pydantic import BaseModel

from cornstalk import App, CompositeTask
from cornstalk.tasks import Embedding, TextEncoder, Texts


class Vectors(BaseModel):
    vectors: list[list[float]]


class Embed(CompositeTask):
    texts = Embedding(TextEncoder(model={model!r}, dtype="float32"))

    def invoke(self, request: Texts) -> Vectors:
        return Vectors(vectors=self.texts(request))


app = App("embed", Embed())
"""


async def test_many_texts_come_back_in_order_and_equal_ones_are_computed_once(tmp_path: Path) -> None:
    folder = tiny_text(tmp_path / "m", "bert", "mean_tokens")
    (tmp_path / "app.py").write_text(APP.format(model=str(folder)))
    texts = [f"the cat sat on mat {n % 20}" for n in range(40)]
    async with Stack(gateways=2, env={"HF_HUB_OFFLINE": "1"}) as stack:
        await stack.deploy(tmp_path / "app.py")
        answer = await stack.clients[1].post("/apps/embed", json={"texts": texts})
        assert answer.status_code == 200, answer.text
        refused = await stack.clients[0].post("/apps/embed", json={"texts": []})
        failed = await stack.clients[0].post("/apps/embed", json={"texts": ["a", "the " * 200]})
    assert refused.status_code == 422
    assert failed.json()["error"]["code"] == "too_long"
    vectors = answer.json()["response"]["vectors"]
    assert len(vectors) == len(texts)
    for text, vector in zip(texts[:20], vectors[:20], strict=True):
        np.testing.assert_allclose(vector, vector_of(folder, "mean_tokens", text), rtol=1e-4, atol=1e-5)
    assert vectors[:20] == vectors[20:]
