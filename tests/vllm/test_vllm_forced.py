"""Stored tokens said again by the interface of model runner V2, which runs on GPUs: here with the state that it hands
over, made by hand. That of V1 is tested by the engine.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.filterwarnings("ignore:::torch", "ignore:::vllm", "ignore:::transformers")  # at their import

PROMPT = 5


def processor(*stored: list[int]) -> Any:
    """Slots 0, 1, ... with a request each."""
    from vllm import SamplingParams

    from components.llm.vllm_forced import AGAIN, ForcedRows

    lengths = SimpleNamespace(np=np.full(len(stored), PROMPT, np.int32))
    made = ForcedRows(None, SimpleNamespace(prompt_len=lengths))
    for slot, tokens in enumerate(stored):
        params = SamplingParams(extra_args={AGAIN: tokens} if tokens else None)
        assert made.add_request(slot, params) == bool(tokens)
    return made


def drawn(made: Any, slots: list[int], said: list[int]) -> list[int]:
    """The likeliest token of each row; 9 is the model's own."""
    import torch
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext

    rows = torch.tensor(slots, dtype=torch.int32)
    context = LogitsContext(
        expanded_idx_mapping=rows,
        idx_mapping=rows,
        idx_mapping_np=np.array(slots, np.int32),
        expanded_local_pos=torch.zeros(len(slots), dtype=torch.int32),
        input_ids=torch.zeros(len(slots), dtype=torch.int32),
        pos=torch.tensor([PROMPT + n - 1 for n in said]),
        seq_lens_upper_bound_np=np.array([PROMPT + n for n in said], np.int32),
    )
    logits = torch.zeros(len(slots), 10)
    logits[:, 9] = 1.0
    result: list[int] = made.apply(logits, context).argmax(-1).tolist()
    return result


def test_each_request_says_its_own_stored_tokens_and_then_what_it_draws() -> None:
    made = processor([3, 4], [], [7])
    assert drawn(made, [0, 1, 2], [0, 0, 0]) == [3, 9, 7]
    assert drawn(made, [2, 0, 1], [1, 1, 1]) == [9, 4, 9]
    assert drawn(made, [0], [2]) == [9]


def test_the_next_request_in_a_slot_has_nothing_of_the_last() -> None:
    from vllm import SamplingParams

    made = processor([3, 4])
    assert not made.add_request(0, SamplingParams())
    assert drawn(made, [0], [0]) == [9]


def test_both_are_what_the_runners_of_vllm_take() -> None:
    from vllm.v1.sample.logits_processor import _load_logitsprocs_by_fqcns
    from vllm.v1.worker.gpu.sample.logits_processor.loader import _load_v2_logitsprocs_by_fqcns

    from components.llm.vllm_forced import Forced, ForcedRows

    assert _load_logitsprocs_by_fqcns([Forced]) == [Forced]
    assert _load_v2_logitsprocs_by_fqcns([ForcedRows]) == [ForcedRows]
