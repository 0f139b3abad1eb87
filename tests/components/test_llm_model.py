"""The step of fixed shape computes what transformers computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from components import models
from components.llm.model import PROMPT_ROWS, STEP_ROWS, Model, Rows
from components.llm.prompt import Prompt
from tests.components.tiny_lm import tiny_model

pytestmark = pytest.mark.models

EXPERTS: Final = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "head_dim": 32}
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


@pytest.mark.parametrize(
    ("kind", "config"),
    [("qwen3_moe", EXPERTS), ("mixtral", {"num_local_experts": 4}), ("qwen3", {"head_dim": 32})],
)
def test_a_sequence_is_bit_for_bit_what_it_is_alone(tmp_path: Path, kind: str, config: dict[str, Any]) -> None:
    """Wherever it stands in a step, and whatever experts those beside it choose."""
    import torch

    model = Model(tiny_model(tmp_path, kind, **config), 128, "float32")
    prompts = [Prompt([(seed + 3 * i) % 90 for i in range(5 + seed)]) for seed in range(STEP_ROWS)]

    def said(prompts: list[Prompt], tokens: int = 6) -> list[Any]:
        """Logits of `tokens` steps, by sequence."""
        memories = [model.memory(len(prompt) + tokens) for prompt in prompts]
        logits = [[model.read(Rows(m, 0, p.tokens, p))] for m, p in zip(memories, prompts, strict=True)]
        for step in range(tokens):
            rows = [
                Rows(m, len(p) + step, (int(told[-1].argmax()),), p)
                for m, p, told in zip(memories, prompts, logits, strict=True)
            ]
            for told, row in zip(logits, model.step(rows), strict=False):
                told.append(row)
        return [torch.stack(told) for told in logits]

    for alone, beside in zip((said([prompt])[0] for prompt in prompts), said(prompts), strict=True):
        assert torch.equal(alone, beside)
