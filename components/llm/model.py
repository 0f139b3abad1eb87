"""A decoder language model that advances several sequences in one step of fixed shape.

**The answer to one request does not depend on what runs beside it.** Matrix products round differently for different
numbers of rows, so a prompt is read alone, and every step of generation has the same number of rows (idle ones are
padding); attention, whose length differs, is computed row by row. Rows are tokens, of any sequence.

transformers runs all of a model but its attention, so that any architecture works whose attention can be replaced and
which mixes tokens nowhere else. Each model is compared with its own computation before it serves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from components.llm.memory import Memory
from cornstalk.errors import SetupError

PROMPT_ROWS: Final = 64
"""Tokens of one prompt in one step."""
STEP_ROWS: Final = 8
"""Tokens in one step of generation: one for each sequence, the rest for stored text to be said again."""
_ATTENTION: Final = "cornstalk_rows"
_ROUNDING: Final = {"float32": 1e-3, "bfloat16": 1e-1}
"""How far logits may be from those of the model's own computation, in parts of the largest."""


@dataclass(frozen=True)
class Rows:
    """Consecutive tokens of one sequence, the first at position `start`. What comes before them is in `memory`."""

    memory: Memory
    start: int
    tokens: Sequence[int]


class Model:
    """Weights of one model. One thread at a time. 700 MB of memory for SmolLM2-135M, and 23 KB a token and sequence.

    `dtype`: "auto" takes bfloat16 where the processor computes in it, else float32. Raises SetupError for a folder
    without a model, and for one whose step of fixed shape would not compute what the model itself does.
    """

    def __init__(self, folder: Path, context: int, dtype: str = "auto") -> None:
        import torch
        from transformers import AttentionInterface, AutoModelForCausalLM
        from transformers.utils import logging

        torch.set_num_threads(1)
        logging.disable_progress_bar()
        AttentionInterface.register(_ATTENTION, _attention)
        if dtype == "auto":
            dtype = "bfloat16" if torch.cpu.get_capabilities().get("avx512_bf16") else "float32"
        try:
            # safetensors alone: other files of weights may hold code
            lm = AutoModelForCausalLM.from_pretrained(
                folder, dtype=getattr(torch, dtype), local_files_only=True, use_safetensors=True
            )
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise SetupError(f"{folder} holds no language model that can be loaded: {error}") from error
        self._lm = lm.eval()
        self.context = min(context, getattr(lm.config.get_text_config(), "max_position_embeddings", context))
        self._check(_ROUNDING[dtype])

    def _check(self, rounding: float) -> None:
        """The first step allocates and picks kernels (0.5 s) too: not at the cost of the first request."""
        import torch

        tokens = [token % self._lm.config.get_text_config().vocab_size for token in (11, 7, 5, 3, 2)]
        with torch.inference_mode():
            expected = self._lm(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, 2:].float()
        memory, beside = self.memory(len(tokens)), self.memory(len(tokens))
        refusal = f"{type(self._lm).__name__} cannot be served: "
        try:
            self._lm.set_attn_implementation(_ATTENTION)
            self.read(Rows(beside, 0, tokens[2:]))
            read = self.read(Rows(memory, 0, tokens[:3]))
            stepped = [self.step([Rows(beside, 3, tokens[:1]), Rows(memory, n, tokens[n : n + 1])])[1] for n in (3, 4)]
        except (TypeError, ValueError, AttributeError) as error:
            raise SetupError(f"{refusal}its attention cannot be replaced: {error}") from error
        if not memory.layers:
            raise SetupError(f"{refusal}its attention cannot be replaced")
        apart = (torch.stack([read, *stepped]) - expected).abs().max() / expected.abs().max()
        if not apart <= rounding:
            raise SetupError(f"{refusal}it looks at other tokens elsewhere than in its attention")

    def memory(self, tokens: int) -> Memory:
        """Room for the keys and values of one sequence."""
        return Memory(tokens)

    def read(self, rows: Rows) -> Any:
        """Takes up to PROMPT_ROWS tokens of a prompt into memory. Logits [vocabulary] float32 after the last."""
        return self._logits([rows], len(rows.tokens), 1)[0]

    def step(self, rows: Sequence[Rows]) -> Any:
        """Logits [STEP_ROWS, vocabulary] float32 after each of up to STEP_ROWS tokens; the rest is padding."""
        # One row each: a token said again must be computed as it was the first time.
        single = [Rows(r.memory, r.start + i, (t,)) for r in rows for i, t in enumerate(r.tokens)]
        return self._logits(single, STEP_ROWS, STEP_ROWS)

    def _logits(self, rows: Sequence[Rows], width: int, last: int) -> Any:
        """Of the `last` of `width` tokens. To the model they are one sequence; only its attention knows better."""
        import torch

        tokens = [t for r in rows for t in r.tokens]
        positions = [r.start + i for r in rows for i in range(len(r.tokens))]
        padding = [0] * (width - len(tokens))
        with torch.inference_mode():
            output = self._lm(
                input_ids=torch.tensor([[*tokens, *padding]]),
                position_ids=torch.tensor([[*positions, *padding]]),
                use_cache=False,
                logits_to_keep=last,
                rows=rows,
            )
            return output.logits[0].float()


def _attention(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Any = None,
    rows: Sequence[Rows],
    **_: Any,
) -> tuple[Any, None]:
    """Called by each layer of the model. query [1, heads, width, size], key and value [1, fewer heads, width, size].

    Raises ValueError for what would have to be added to plain attention.
    """
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    if softcap is not None or s_aux is not None:
        raise ValueError("it caps or adds logits of attention")
    queries, keys, values = (t[0].transpose(0, 1) for t in (query, key, value))  # [width, heads, size]
    width, heads, size = queries.shape
    groups = keys.shape[1]
    output = queries.new_zeros(width, heads, values.shape[2])
    first = 0
    for r in rows:
        n = len(r.tokens)
        mine = slice(first, first + n)
        known, told = r.memory.extend(module.layer_idx, r.start, keys[mine], values[mine])
        if n == 1:  # the heads that share a key are taken as so many questions to it
            if sliding_window:
                known, told = known[:, :, -sliding_window:], told[:, :, -sliding_window:]
            asked = queries[first].view(1, groups, heads // groups, size)
            output[first] = scaled_dot_product_attention(asked, known, told, scale=scaling).view(heads, -1)
        else:
            seen = torch.ones(n, r.start + n, dtype=torch.bool).tril(r.start)
            if sliding_window:
                seen = seen.triu(r.start + 1 - sliding_window)
            asked = queries[mine].transpose(0, 1).unsqueeze(0)
            answer = scaled_dot_product_attention(asked, known, told, seen, scale=scaling, enable_gqa=True)
            output[mine] = answer[0].transpose(0, 1)
        first += n
    return output.unsqueeze(0), None
