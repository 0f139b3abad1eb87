"""The step of fixed shape computes what transformers computes."""

from __future__ import annotations

import pytest

from components import models
from components.llm.model import PROMPT_ROWS, Model, Rows

pytestmark = pytest.mark.models

TOKENS = [(7 * i) % 49_000 for i in range(PROMPT_ROWS + 9)]


def test_logits_are_those_of_transformers_own_attention() -> None:
    import torch
    from transformers import AutoModelForCausalLM

    folder = models.language_model(models.SMOLLM2)
    model = Model(folder, 256)
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    with torch.inference_mode():
        expected = plain(torch.tensor([TOKENS])).logits[0]
    memory = model.memory(len(TOKENS))
    read = [model.read(Rows(memory, at, TOKENS[at : at + PROMPT_ROWS])) for at in (0, PROMPT_ROWS)]
    again = model.memory(len(TOKENS))
    model.read(Rows(again, 0, TOKENS[:PROMPT_ROWS]))
    stepped = model.step([Rows(again, PROMPT_ROWS, TOKENS[PROMPT_ROWS : PROMPT_ROWS + 5])])
    ours = torch.stack([*read, stepped[4]])
    theirs = expected[[PROMPT_ROWS - 1, len(TOKENS) - 1, PROMPT_ROWS + 4]]
    assert torch.cosine_similarity(ours, theirs).min() > 0.999
    assert (ours.argmax(-1) == theirs.argmax(-1)).all()
