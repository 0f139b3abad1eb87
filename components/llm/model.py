"""A decoder language model that advances several sequences in one step of fixed shape.

**The answer to one request does not depend on what runs beside it.** Matrix products round differently for different
numbers of rows, so a prompt is read alone, and every step of generation has the same number of rows (idle ones are
padding); attention, whose length differs, is computed row by row. Rows are tokens, of any sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from components.llm.memory import Memory

PROMPT_ROWS: Final = 64
"""Tokens of one prompt in one step."""
STEP_ROWS: Final = 8
"""Tokens in one step of generation: one for each sequence, the rest for stored text to be said again."""
_ATTENTION: Final = "cornstalk_rows"


@dataclass(frozen=True)
class Rows:
    """Consecutive tokens of one sequence, the first at position `start`. What comes before them is in `memory`."""

    memory: Memory
    start: int
    tokens: Sequence[int]


class Model:
    """Weights of one model. One thread at a time. 700 MB of memory for SmolLM2-135M, and 23 KB a token and sequence."""

    def __init__(self, folder: Path, context: int) -> None:
        import torch
        from transformers import AttentionInterface, AutoModelForCausalLM
        from transformers.utils import logging

        torch.set_num_threads(1)
        logging.disable_progress_bar()
        AttentionInterface.register(_ATTENTION, _attention)
        self.dtype = torch.bfloat16 if torch.cpu.get_capabilities().get("avx512_bf16") else torch.float32
        lm = AutoModelForCausalLM.from_pretrained(
            folder, dtype=self.dtype, attn_implementation=_ATTENTION, local_files_only=True
        )
        self._body, self._head = lm.base_model.eval(), lm.get_output_embeddings()
        self._config = lm.config
        self.context = min(context, lm.config.max_position_embeddings)
        self._warm()

    def _warm(self) -> None:
        """The first step allocates and picks kernels (0.5 s): not at the cost of the first request."""
        memory = self.memory(2)
        self.read(Rows(memory, 0, (0,)))
        self.step([Rows(memory, 1, (0,))])

    def memory(self, tokens: int) -> Memory:
        """Room for the keys and values of one sequence."""
        config = self._config
        return Memory(config.num_hidden_layers, config.num_key_value_heads, tokens, config.head_dim, self.dtype)

    def read(self, rows: Rows) -> Any:
        """Takes up to PROMPT_ROWS tokens of a prompt into memory. Logits [vocabulary] float32 after the last."""
        import torch

        with torch.inference_mode():
            return self._head(self._hidden([rows], len(rows.tokens))[-1:])[0].float()

    def step(self, rows: Sequence[Rows]) -> Any:
        """Logits [STEP_ROWS, vocabulary] float32 after each of up to STEP_ROWS tokens; the rest is padding."""
        import torch

        with torch.inference_mode():
            # One row each: a token said again must be computed as it was the first time.
            single = [Rows(r.memory, r.start + i, (t,)) for r in rows for i, t in enumerate(r.tokens)]
            return self._head(self._hidden(single, STEP_ROWS)).float()

    def _hidden(self, rows: Sequence[Rows], width: int) -> Any:
        import torch

        tokens = [t for r in rows for t in r.tokens]
        positions = [r.start + i for r in rows for i in range(len(r.tokens))]
        padding = [0] * (width - len(tokens))
        output = self._body(
            input_ids=torch.tensor([*tokens, *padding]).unsqueeze(1),
            position_ids=torch.tensor([*positions, *padding]).unsqueeze(1),
            use_cache=False,
            rows=rows,
        )
        return output.last_hidden_state.squeeze(1)


def _attention(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    *,
    scaling: float,
    rows: Sequence[Rows],
    **_: Any,
) -> tuple[Any, None]:
    """Called by each layer of the model. query [width, heads, 1, size], key and value [width, fewer heads, 1, size]."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    width, heads, _one, size = query.shape
    groups = key.shape[1]
    output = query.new_zeros(width, heads, size)
    first = 0
    for r in rows:
        n = len(r.tokens)
        mine = slice(first, first + n)
        keys, values = r.memory.extend(module.layer_idx, r.start, key[mine, :, 0], value[mine, :, 0])
        if n == 1:  # the heads that share a key are taken as so many questions to it
            asked = query[first].view(1, groups, heads // groups, size)
            output[first] = scaled_dot_product_attention(asked, keys, values, scale=scaling).view(heads, size)
        else:
            asked = query[mine, :, 0].transpose(0, 1).unsqueeze(0)
            before = torch.ones(n, r.start + n, dtype=torch.bool).tril(r.start)
            answer = scaled_dot_product_attention(asked, keys, values, before, scale=scaling, enable_gqa=True)
            output[mine] = answer[0].transpose(0, 1)
        first += n
    return output.unsqueeze(1), None
