"""Logits processors of vLLM that say stored tokens again: what is counted and checked while tokens are drawn sees them.

vLLM has two model runners, each with an interface of its own for such processors.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcessor

AGAIN: Final = "cornstalk_again"
"""Name of the stored tokens among the extra arguments of a request."""


def again(params: SamplingParams) -> list[int]:
    return list((params.extra_args or {}).get(AGAIN, ()))


def _only(logits: torch.Tensor, token: int) -> None:
    """Leaves one token of a row [vocabulary]."""
    kept = logits[token].clone()
    logits.fill_(float("-inf"))
    logits[token] = kept


class Forced(AdapterLogitsProcessor):  # type: ignore[misc]
    """Of model runner V1, which is that of CPUs."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        stored = again(params)

        def force(said: list[int], logits: torch.Tensor) -> torch.Tensor:
            if len(said) < len(stored):
                _only(logits, stored[len(said)])
            return logits

        return force if stored else None


class ForcedRows(LogitsProcessor):  # type: ignore[misc]
    """Of model runner V2."""

    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        self._prompts = req_states.prompt_len.np
        self._stored: dict[int, list[int]] = {}

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        self._stored[req_idx] = again(sampling_params)
        return bool(self._stored[req_idx])

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        if not any(self._stored.get(slot) for slot in ctx.idx_mapping_np.tolist()):
            return logits
        places = zip(ctx.expanded_idx_mapping.tolist(), ctx.pos.tolist(), strict=True)
        for row, (slot, position) in enumerate(places):
            stored, said = self._stored.get(slot, ()), position + 1 - int(self._prompts[slot])
            if 0 <= said < len(stored):
                _only(logits[row], stored[said])
        return logits
