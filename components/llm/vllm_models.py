"""Multimodal models in vLLM without eyes and ears: rows that an encoder made elsewhere go in as they are.

These take the place of vLLM's own classes of the same architectures, which cannot be had without the eyes, the
processors of transformers, and torchvision.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import nn
from vllm.model_executor.models.interfaces import SupportsMRoPE, SupportsMultiModal, SupportsPP
from vllm.model_executor.models.utils import (
    AutoWeightsLoader,
    WeightsMapper,
    init_vllm_registered_model,
    maybe_prefix,
)
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.processing import BaseProcessingInfo

from components.llm.vllm_pictures import POSITIONS, ROWS

_OTHERS = re.compile(
    r"^(thinker\.)?(model\.)?(visual|vision_tower|multi_modal_projector|image_newline|audio_tower)\b|^(talker|token2wav)\."
)


class Limits(BaseProcessingInfo):  # type: ignore[misc]
    """A picture may fill the whole prompt."""

    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        return {"image": None}

    def get_mm_max_tokens_per_item(self, seq_len: int, mm_counts: Mapping[str, int]) -> Mapping[str, int]:
        return {"image": seq_len}


class Ready:
    """In the place of what prepares pictures: nothing is left to prepare."""

    def __init__(self, info: Limits, _dummies: None) -> None:
        self.info = info


@MULTIMODAL_REGISTRY.register_processor(Ready, info=Limits, dummy_inputs=lambda _: None)
class Words(nn.Module, SupportsMultiModal, SupportsPP):  # type: ignore[misc]
    """The half for words, of families that put rows in the place of embeddings and do no more."""

    language: ClassVar[list[str] | None] = None
    """Its architecture, where its configuration does not tell."""
    allow_patterns_overrides: ClassVar = ["*.safetensors"]
    """Those that are there: files of the other half need not be."""
    hf_to_vllm_mapper = WeightsMapper(
        orig_to_new_regex={
            _OTHERS: None,
            re.compile(r"^(thinker\.|language_model\.)?lm_head\."): "language_model.lm_head.",
            re.compile(r"^(thinker\.)?(model\.language_model\.|language_model\.model\.|model\.)"): (
                "language_model.model."
            ),
        }
    )

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__()
        self.config = vllm_config.model_config.hf_config
        with self._mark_language_model(vllm_config):
            self.language_model = init_vllm_registered_model(
                vllm_config=vllm_config,
                prefix=maybe_prefix(prefix, "language_model"),
                hf_config=self.config.get_text_config(),
                architectures=self.language,
            )
        self.make_empty_intermediate_tensors = self.language_model.make_empty_intermediate_tensors

    def embed_multimodal(self, **given: Any) -> list[Any]:
        """One tensor [n, size] for each picture of a batch."""
        return list(given[ROWS])

    def forward(
        self, input_ids: Any, positions: Any, intermediate_tensors: Any = None, inputs_embeds: Any = None, **_: Any
    ) -> Any:
        return self.language_model.model(input_ids, positions, intermediate_tensors, inputs_embeds=inputs_embeds)

    def compute_logits(self, hidden_states: Any) -> Any:
        return self.language_model.compute_logits(hidden_states)

    def load_weights(self, weights: Iterable[tuple[str, Any]]) -> set[str]:
        loaded: set[str] = AutoWeightsLoader(self).load_weights(weights, mapper=self.hf_to_vllm_mapper)
        return loaded


class Placed(Words, SupportsMRoPE):  # type: ignore[misc]
    """Rows have positions in time, height and width; they come with them, and those of the texts after them."""

    language = ["Qwen2ForCausalLM"]

    def get_mrope_input_positions(
        self, input_tokens: Sequence[int], mm_features: Sequence[Any]
    ) -> tuple[torch.Tensor, int]:
        features = sorted(mm_features, key=lambda one: one.mm_position.offset)
        if not features:
            return _text(0, len(input_tokens)), 0
        parts = [_text(0, features[0].mm_position.offset), *(one.data[POSITIONS].data for one in features)]
        told = torch.cat(parts, 1)
        following, rest = int(told.max()) + 1, len(input_tokens) - told.shape[1]
        return torch.cat([told, _text(following, rest)], 1), following + rest - len(input_tokens)


def _text(first: int, count: int) -> torch.Tensor:
    """Positions [3, count] of text."""
    return torch.arange(first, first + count).expand(3, -1)


class Deep(Placed):
    """Rows [n, (1 + layers) * size]: all but the first `size` values are added to what the first layers put out."""

    language = ["Qwen3ForCausalLM"]

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        most, text = vllm_config.scheduler_config.max_num_batched_tokens, self.config.text_config
        count = len(self.config.vision_config.deepstack_visual_indexes)
        self._size = text.hidden_size
        for layer, depth in zip(self.language_model.model.layers, range(count), strict=False):
            self.register_buffer(f"deep_{depth}", torch.zeros(most, self._size), persistent=False)
            layer.register_forward_hook(self._deepened(depth))
        self._deep = [getattr(self, f"deep_{depth}") for depth in range(count)]
        self._filled = 0

    def _deepened(self, depth: int) -> Callable[[Any, Any, Any], Any]:
        def add(_layer: Any, _given: Any, put_out: Any) -> Any:
            states, residual = put_out
            return states + self._deep[depth][: states.shape[0]], residual

        return add

    def embed_input_ids(
        self, input_ids: Any, multimodal_embeddings: Any = None, *, is_multimodal: Any = None
    ) -> torch.Tensor:
        """Also puts in place what is added deeper down, of the step that follows."""
        first = [rows[:, : self._size] for rows in multimodal_embeddings or ()]
        for depth, added in enumerate(self._deep, 1):
            added[: self._filled].zero_()
            if first:
                part = slice(depth * self._size, (depth + 1) * self._size)
                rows = torch.cat([rows[:, part] for rows in multimodal_embeddings])
                added[: len(input_ids)][is_multimodal] = rows.to(added.dtype)
        self._filled = len(input_ids) if first else 0
        embeds: torch.Tensor = super().embed_input_ids(input_ids, first or None, is_multimodal=is_multimodal)
        return embeds
