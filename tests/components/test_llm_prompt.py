"""Rows of embeddings in place of tokens, positions of their own, and hidden states out: the seams for other stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from components.llm.model import PROMPT_ROWS, Model, Rows
from components.llm.prompt import Prompt
from tests.components.tiny_lm import tiny_model

pytestmark = pytest.mark.models

TOKENS = [(7 * i) % 250 for i in range(PROMPT_ROWS + 12)]


def read(model: Model, prompt: Prompt, **more: Any) -> Any:
    """Logits after the prompt, which is read in parts."""
    memory, at, logits = model.memory(len(prompt) + 2), 0, None
    while at < len(prompt):
        end = prompt.end_of_part(at, PROMPT_ROWS)
        logits = model.read(Rows(memory, at, prompt.tokens[at:end], prompt, **more))
        at = end
    stepped = model.step([Rows(memory, len(prompt), (9, 8), prompt, **more)])
    return logits, stepped[:2]


def test_rows_stand_for_tokens_across_parts(tmp_path: Path) -> None:
    import torch

    model = Model(tiny_model(tmp_path, "qwen2"), 128, "float32")
    plain = read(model, Prompt(TOKENS))
    spans = [(3, 9), (PROMPT_ROWS - 4, PROMPT_ROWS + 5)]
    inside = [at for first, last in spans for at in range(first, last)]
    rows = model._lm.get_input_embeddings()(torch.tensor([[TOKENS[at] for at in inside]])).detach()
    holes = [1_000_000 if at in inside else token for at, token in enumerate(TOKENS)]
    for given, same in ((rows, True), (rows * 2, False)):
        found = read(model, Prompt(holes, given, spans))
        assert all(torch.equal(a, b) is same for a, b in zip(plain, found, strict=True))


def test_hidden_states_are_told_once_and_are_those_of_transformers(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    folder = tiny_model(tmp_path, "qwen2")
    model, told = Model(folder, 128, "float32", taps=(0, 1, -1)), list[tuple[int, Any]]()
    read(model, Prompt(TOKENS), listen=lambda at, states: told.append((at, states)))
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        expected = plain(torch.tensor([[*TOKENS, 9, 8]]), output_hidden_states=True).hidden_states
    assert [at for at, _ in told] == [0, PROMPT_ROWS, len(TOKENS), len(TOKENS) + 1]
    found = torch.cat([states for _, states in told], 1)
    assert torch.allclose(found, torch.stack([expected[tap][0] for tap in (0, 1, -1)]), atol=1e-4)


@pytest.mark.parametrize(("start", "end"), [(0, 4), (4, 10), (8, 12), (16, 20)])
def test_a_part_ends_before_no_span_that_sees_both_ways(start: int, end: int) -> None:
    prompt = Prompt(range(20), None, [(5, 10), (12, 13)], both_ways=True)
    assert prompt.end_of_part(start, 4) == end
    assert prompt.places(8, 13) == ([8, 9, 12], slice(3, 6))
