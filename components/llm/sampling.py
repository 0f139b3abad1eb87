"""How the next token is drawn: the processors of transformers, in the order in which vLLM applies its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from components.llm.answer import Ask
from components.llm.batch import Sample

Change = Callable[[Any, Any], Any]
"""Tokens so far [1, n] and logits [1, vocabulary] -> logits."""


def sampler(ask: Ask, prompt: Sequence[int], seed: int) -> Sample:
    """For one request: the likeliest token at temperature 0, else drawn by a generator of its own."""
    import torch

    penalties, limits = _penalties(ask, prompt), _limits(ask)
    generator = torch.Generator().manual_seed((seed if ask.seed is None else ask.seed) & (2**63 - 1))

    def draw(logits: Any, tokens: Sequence[int]) -> int:
        scores, said = logits.unsqueeze(0), torch.tensor([tokens], dtype=torch.long)
        for change in penalties:
            scores = change(said, scores)
        if ask.temperature == 0.0:
            return int(scores.argmax())
        scores = (scores - scores.max()) / ask.temperature
        for change in limits:
            scores = change(said, scores)
        return int(torch.multinomial(scores[0].softmax(-1), 1, generator=generator))

    return draw


def _penalties(ask: Ask, prompt: Sequence[int]) -> list[Change]:
    import torch
    from transformers import RepetitionPenaltyLogitsProcessor

    found: list[Change] = []
    if ask.repetition_penalty != 1.0:
        asked = torch.tensor([prompt], dtype=torch.long)
        repeated = RepetitionPenaltyLogitsProcessor(ask.repetition_penalty)

        def of_all(said: Any, scores: Any) -> Any:
            known = asked[asked < scores.shape[1]].unsqueeze(0)  # placeholders may be outside of the vocabulary
            return repeated(torch.cat([known, said], 1), scores)

        found.append(of_all)
    if ask.presence_penalty or ask.frequency_penalty:

        def of_the_answer(said: Any, scores: Any) -> Any:
            counts = torch.bincount(said[0], minlength=scores.shape[1])
            return scores - ask.frequency_penalty * counts - ask.presence_penalty * (counts > 0)

        found.append(of_the_answer)
    return found


def _limits(ask: Ask) -> list[Change]:
    from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    found: list[Change] = []
    if ask.min_p:
        found.append(MinPLogitsWarper(ask.min_p))
    if ask.top_k:
        found.append(TopKLogitsWarper(ask.top_k))
    if ask.top_p < 1.0:
        found.append(TopPLogitsWarper(ask.top_p))
    return found
