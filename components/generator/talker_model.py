"""The talker of Qwen2.5-Omni: a small decoder that reads rows of its thinker and draws codes of speech.

As components/llm/model.py it advances several sequences in one step of fixed shape, so that no sequence depends on what
runs beside it. What it reads for a code is the sum of the code's embedding and a row of the thinker. transformers'
`generate` drops a mask of ones, and with it what `forward` would add to the last two rows of a prompt; so does this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from components.llm.memory import Memory
from components.llm.model import ATTENTION, STEP_ROWS, Rows, attention
from components.qwen_omni import OmniFolder


@dataclass(frozen=True)
class Code:
    """One code of one sequence, at position `start`, and the row [size] that goes with it."""

    memory: Memory
    start: int
    code: int
    row: Any


class TalkerModel:
    """Float tensors of `dtype`, from its own weights only. One thread at a time. Raises SetupError."""

    def __init__(self, folder: OmniFolder, dtype: Any, device: str) -> None:
        from transformers import AttentionInterface
        from transformers.models.qwen2_5_omni import modeling_qwen2_5_omni as omni

        config = folder.config.talker_config
        AttentionInterface.register(ATTENTION, attention)
        talker = folder.part("talker.", omni.Qwen2_5OmniTalkerForConditionalGeneration, config, dtype)
        self._talker, self._device = talker.to(device), device
        self._talker.set_attn_implementation(ATTENTION)
        self.size, self.context, self._dtype = config.embedding_size, config.max_position_embeddings, dtype
        self.begin = config.tts_codec_start_token_id
        self.before = frozenset((config.tts_codec_mask_token_id, config.tts_codec_pad_token_id, self.begin))
        """What stands before the first code: a penalty for what was said counts them."""
        self.ends = frozenset((config.tts_codec_end_token_id, config.tts_codec_pad_token_id))

    def memory(self, codes: int) -> Memory:
        return Memory(codes)

    def read(self, memory: Memory, start: int, rows: Any) -> Any:
        """Takes rows [n, size] of a prompt into memory. Logits [codes] float32 after the last."""
        told = Rows(memory, start, (0,) * rows.shape[0])
        return self._logits([told], rows.to(self._device, self._dtype), list(range(start, start + rows.shape[0])), 1)[0]

    def step(self, codes: Sequence[Code]) -> Any:
        """Logits [STEP_ROWS, codes] float32 after each of up to STEP_ROWS codes; the rest is padding."""
        import torch

        inputs = torch.zeros(STEP_ROWS, self.size, dtype=self._dtype, device=self._device)
        with torch.inference_mode():
            known = self._talker.model.embed_tokens(torch.tensor([c.code for c in codes], device=self._device))
            inputs[: len(codes)] = known + torch.stack([c.row for c in codes]).to(self._device, self._dtype)
        rows = [Rows(c.memory, c.start, (c.code,)) for c in codes]
        padding = [0] * (STEP_ROWS - len(codes))
        return self._logits(rows, inputs, [*(c.start for c in codes), *padding], STEP_ROWS)

    def _logits(self, rows: Sequence[Rows], inputs: Any, positions: list[int], last: int) -> Any:
        """To the model the rows are one sequence; only its attention knows better."""
        import torch

        with torch.inference_mode():
            output = self._talker.model(
                inputs_embeds=self._talker.thinker_to_talker_proj(inputs.unsqueeze(0)),
                position_ids=torch.tensor([positions], device=self._device),
                use_cache=False,
                rows=rows,
            )
            return self._talker.codec_head(output.last_hidden_state[0, -last:]).float().cpu()
