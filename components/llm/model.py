"""A decoder language model that advances several sequences in one step of fixed shape.

**The answer to one request does not depend on what runs beside it.** Matrix products round differently for different
numbers of rows, so a prompt is read alone, and every step of generation has the same number of rows (idle ones are
padding); attention, whose length differs, and experts are computed row by row. Rows are tokens, of any sequence.

transformers runs the rest, so that any architecture works whose attention can be replaced and which mixes tokens
nowhere else. Each model is compared with its own computation before it serves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from components import qwen_omni
from components.halves import FAMILIES, config_of, device_of, dtype_of, words
from components.llm import experts
from components.llm.causal import causal
from components.llm.memory import Memory
from components.llm.prompt import Prompt
from cornstalk.errors import SetupError

PROMPT_ROWS: Final = 64
"""Tokens of one prompt in one step."""
STEP_ROWS: Final = 8
"""Tokens in one step of generation: one for each sequence, the rest for stored text to be said again."""
ATTENTION: Final = "cornstalk_rows"
_ROUNDING: Final = {"float32": 1e-3, "bfloat16": 1e-1}
"""How far logits may be from those of the model's own computation, in parts of the largest."""

Listen = Callable[[int, Any], None]
"""Takes the index of a token in its sequence and the hidden states [taps, n, size] of it and those after it. Called in
the thread of the model, before the next token is drawn; for a token that is said again as well."""

_NO_PROMPT: Final = Prompt(())


@dataclass(frozen=True)
class Rows:
    """Consecutive tokens of one sequence, the first with the index `start`. What comes before is in `memory`."""

    memory: Memory
    start: int
    tokens: Sequence[int]
    prompt: Prompt = _NO_PROMPT
    listen: Listen | None = None


class Model:
    """Weights of one model. One thread at a time. 700 MB of memory for SmolLM2-135M, and 23 KB a token and sequence.

    Of a multimodal model of `FAMILIES` only the half for words is loaded. `taps`: of which hidden states `Listen`
    hears, 0 for embeddings, i for what layer i puts out, -1 for what the head gets. `device` and `dtype` may be "auto".

    Raises SetupError for a folder without a model, and for one whose step of fixed shape would not compute what the
    model itself does.
    """

    def __init__(
        self, folder: Path, context: int, dtype: str = "auto", device: str = "auto", taps: Sequence[int] = ()
    ) -> None:
        import torch
        from transformers import AttentionInterface
        from transformers.utils import logging

        torch.set_num_threads(1)
        logging.disable_progress_bar()
        AttentionInterface.register(ATTENTION, attention)
        self.config = config_of(folder)
        self.device = device_of(device)
        precision = dtype_of(dtype, self.device)
        speaks = self.config.model_type in qwen_omni.FAMILIES
        multimodal = speaks or self.config.model_type in FAMILIES
        load = qwen_omni.thinker if speaks else words if multimodal else causal
        self._lm = load(folder, self.config, precision, self.device)
        self.config = self._lm.config  # of a model that speaks, the part for words
        self._run = self._half if multimodal else self._lm
        self._taps = list(taps)
        text = self.config.get_text_config()
        self.context = min(context, getattr(text, "max_position_embeddings", context))
        self._check(_ROUNDING[str(precision).removeprefix("torch.")])

    def _check(self, rounding: float) -> None:
        """The first step allocates and picks kernels (0.5 s) too: not at the cost of the first request."""
        import torch

        tokens = [token % self.config.get_text_config().vocab_size for token in (11, 7, 5, 3, 2)]
        with torch.inference_mode():
            plain = self._lm(input_ids=torch.tensor([tokens], device=self.device), use_cache=False)
            expected = plain.logits[0, 2:].float().cpu()
        memory, beside = self.memory(len(tokens)), self.memory(len(tokens))
        refusal = f"{type(self._lm).__name__} cannot be served: "
        try:
            self._lm.set_attn_implementation(ATTENTION)
            experts.apart(self._lm, STEP_ROWS)
            one, other = Prompt(tokens[:3]), Prompt(tokens[2:])
            self.read(Rows(beside, 0, other.tokens, other))
            read = self.read(Rows(memory, 0, one.tokens, one))
            stepped = [
                self.step([Rows(beside, 3, tokens[:1], other), Rows(memory, n, tokens[n : n + 1], one)])[1]
                for n in (3, 4)
            ]
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

    def embeddings(self, tokens: Sequence[int]) -> Any:
        """[n, size]: what the model reads for each token."""
        import torch

        with torch.inference_mode():
            return self._lm.get_input_embeddings()(torch.tensor(tokens, device=self.device))

    def read(self, rows: Rows) -> Any:
        """Takes a part of a prompt into memory. Logits [vocabulary] float32 after its last token."""
        return self._logits([rows], len(rows.tokens), 1)[0]

    def step(self, rows: Sequence[Rows]) -> Any:
        """Logits [STEP_ROWS, vocabulary] float32 after each of up to STEP_ROWS tokens; the rest is padding."""
        # One row each: a token said again must be computed as it was the first time.
        single = [Rows(r.memory, r.start + i, (t,), r.prompt, r.listen) for r in rows for i, t in enumerate(r.tokens)]
        return self._logits(single, STEP_ROWS, STEP_ROWS)

    def _logits(self, rows: Sequence[Rows], width: int, last: int) -> Any:
        """Of the `last` of `width` tokens. To the model they are one sequence; only its attention knows better."""
        import torch

        tokens = torch.zeros(1, width, dtype=torch.long)
        ids = [t for r in rows for t in r.tokens]
        tokens[0, : len(ids)] = torch.tensor(ids)
        with torch.inference_mode():
            output = self._run(
                **self._embedded(rows, tokens.to(self.device)),
                position_ids=self._positions(rows, width),
                use_cache=False,
                logits_to_keep=last,
                rows=rows,
                output_hidden_states=any(r.listen for r in rows),
            )
            self._tell(rows, output)
            return output.logits[0].float().cpu()

    def _embedded(self, rows: Sequence[Rows], tokens: Any) -> dict[str, Any]:
        """Only prompts have rows of embeddings, and they are read one by one."""
        at, given = rows[0].prompt.places(rows[0].start, rows[0].start + len(rows[0].tokens))
        if not at:
            return {"input_ids": tokens}
        first = rows[0].start
        put, *deep = rows[0].prompt.rows[:, given].to(self.device, self._lm.dtype)
        places = [place - first for place in at]
        tokens[0, places] = 0  # a placeholder may be outside of the vocabulary
        embeds = self._lm.get_input_embeddings()(tokens)
        embeds[0, places] = put
        if not deep:
            return {"inputs_embeds": embeds}
        seen = tokens.new_zeros(tokens.shape, dtype=bool)
        seen[0, places] = True
        return {"inputs_embeds": embeds, "visual_pos_masks": seen, "deepstack_visual_embeds": deep}

    def _positions(self, rows: Sequence[Rows], width: int) -> Any:
        """int64 [1, width], or [axes, 1, width] for a part of a prompt that has them so; 0 for padding."""
        import torch

        first = rows[0]
        if first.prompt.positions is not None and first.start < len(first.prompt):
            part = first.prompt.positions[:, first.start : first.start + width]
            return part.unsqueeze(1).to(self.device)
        positions = [r.start + r.prompt.shift + i for r in rows for i in range(len(r.tokens))]
        return torch.tensor([[*positions, *[0] * (width - len(positions))]], device=self.device)

    def _half(self, *, logits_to_keep: int, **inputs: Any) -> Any:
        """What a multimodal model does once its embeddings and positions are known."""
        output = self._lm.model.language_model(**inputs)
        output["logits"] = self._lm.lm_head(output.last_hidden_state[:, -logits_to_keep:])
        return output

    def _tell(self, rows: Sequence[Rows], output: Any) -> None:
        import torch

        first = 0
        for r in rows:
            end = first + len(r.tokens)
            if r.listen is not None:
                r.listen(r.start, torch.stack([output.hidden_states[tap][0, first:end] for tap in self._taps]))
            first = end


def attention(
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
            seen = torch.ones(n, r.start + n, dtype=torch.bool, device=query.device).tril(r.start)
            if r.prompt.both_ways:
                for start, end in r.prompt.spans:
                    if r.start <= start < r.start + n:
                        seen[start - r.start : end - r.start, start:end] = True
            if sliding_window:
                seen = seen.triu(r.start + 1 - sliding_window)
            asked = queries[mine].transpose(0, 1).unsqueeze(0)
            answer = scaled_dot_product_attention(asked, known, told, seen, scale=scaling, enable_gqa=True)
            output[mine] = answer[0].transpose(0, 1)
        first += n
    return output.unsqueeze(0), None
