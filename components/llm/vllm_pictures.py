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
    items = [_item(prompt, start, end, modality) for start, end in prompt.spans]
    return mm_input(
        tokens,
        MultiModalKwargsItems({modality: items}),
        {modality: [_hash(item) for item in items]},
        {modality: [PlaceholderRange(offset=start, length=end - start) for start, end in prompt.spans]},
    )


def _item(prompt: Prompt, start: int, end: int, modality: str) -> Any:
    from vllm.multimodal.inputs import MultiModalBatchedField, MultiModalFieldElem, MultiModalKwargsItem

    _, given = prompt.places(start, end)
    rows = MultiModalFieldElem(prompt.rows[:, given].transpose(0, 1).flatten(1), MultiModalBatchedField())
    if modality == SOUND:
        return MultiModalKwargsItem({"embedding": rows})
    fields = {ROWS: rows}
    if prompt.positions is not None:
        positions = prompt.positions[:, start:end].contiguous()
        fields[POSITIONS] = MultiModalFieldElem(positions, MultiModalBatchedField(keep_on_cpu=True))
    return MultiModalKwargsItem(fields)


def _hash(item: Any) -> str:
    """By which vLLM finds what it knows of a picture: equal rows, whose positions are given, are one."""
    import torch

    found = sha256()
    for name in sorted(item):
        found.update(item[name].data.contiguous().view(torch.uint8).numpy())
    return found.hexdigest()
