"""Prompts with rows in them as vLLM takes them, past its own preparation of pictures and sounds."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final

from components.llm.prompt import Prompt

ROWS: Final = "rows"
POSITIONS: Final = "positions"
"""Names of what the model is given of each picture."""
PICTURE: Final = "image"
SOUND: Final = "prompt_embeds"
"""Modalities of vLLM: rows that go through the model class, and rows that it puts into prompts by itself."""
FAMILIES: Final = {
    "qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration=components.llm.vllm_models:Placed",
    "qwen2_vl": "Qwen2VLForConditionalGeneration=components.llm.vllm_models:Placed",
    "qwen3_vl": "Qwen3VLForConditionalGeneration=components.llm.vllm_models:Deep",
    "llava_onevision": "LlavaOnevisionForConditionalGeneration=components.llm.vllm_models:Words",
    "internvl": "InternVLForConditionalGeneration=components.llm.vllm_models:Words",
}
"""By the model type of transformers: the architecture in vLLM, and which class of ours takes its place."""
OF_TEXTS: Final = {"gemma3": "Gemma3ForConditionalGeneration=components.llm.vllm_models:Words"}
"""The same of those that vLLM is given no pictures for: theirs see each other in both directions."""


def engine_input(prompt: Prompt, more: Sequence[int], modality: str = PICTURE) -> Any:
    """`prompt`, and tokens of the answer that are known already. Hashes all rows."""
    from vllm.inputs.engine import mm_input, tokens_input
    from vllm.multimodal.inputs import MultiModalKwargsItems, PlaceholderRange

    tokens = [*prompt.tokens, *more]
    if not prompt.spans:
        return tokens_input(tokens)
    spans = [(start, end) for start, end in prompt.spans]
    following = [*(start for start, _ in spans[1:]), len(prompt)]
    items = [_item(prompt, start, end, upto, modality) for (start, end), upto in zip(spans, following, strict=True)]
    return mm_input(
        tokens,
        MultiModalKwargsItems({modality: items}),
        {modality: [_hash(prompt, start, end) for start, end in spans]},
        {modality: [PlaceholderRange(offset=start, length=end - start) for start, end in spans]},
    )


def _item(prompt: Prompt, start: int, end: int, upto: int, modality: str) -> Any:
    """One span of rows. With it come the positions up to the next one: not all follow from those of the rows."""
    from vllm.multimodal.inputs import MultiModalBatchedField, MultiModalFieldElem, MultiModalKwargsItem

    rows = MultiModalFieldElem(_rows(prompt, start, end).transpose(0, 1).flatten(1), MultiModalBatchedField())
    if modality == SOUND:
        return MultiModalKwargsItem({"embedding": rows})
    fields = {ROWS: rows}
    if prompt.positions is not None:
        positions = prompt.positions[:, start:upto].long().contiguous()
        fields[POSITIONS] = MultiModalFieldElem(positions, MultiModalBatchedField(keep_on_cpu=True))
    return MultiModalKwargsItem(fields)


def _rows(prompt: Prompt, start: int, end: int) -> Any:
    _, given = prompt.places(start, end)
    return prompt.rows[:, given]


def _hash(prompt: Prompt, start: int, end: int) -> str:
    """By which vLLM finds what it knows of a span: equal rows at equal positions are one."""
    import torch

    found = sha256(_rows(prompt, start, end).contiguous().view(torch.uint8).numpy())
    if prompt.positions is not None:
        found.update(prompt.positions[:, start:end].contiguous().numpy())
    return found.hexdigest()
