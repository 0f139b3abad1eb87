"""Mixtures of experts in steps of several sequences: what a row becomes does not depend on the rows beside it.

transformers groups rows by expert, so that how many rows a product has, and how it rounds, depends on all of them.
"""

from __future__ import annotations

from typing import Any, Final

EXPERTS: Final = "cornstalk_rows"


def apart(model: Any, rows: int) -> None:
    """Each row of a step of up to `rows` is computed alone. What is longer is the prompt of one sequence, and grouped.

    Does nothing to a model without experts.
    """
    import torch
    from transformers.integrations import moe

    def experts(module: Any, hidden: Any, index: Any, weights: Any) -> Any:
        grouped = moe.grouped_mm_experts_forward
        if hidden.shape[0] > rows:
            return grouped(module, hidden, index, weights)
        # not batched_mm, which copies the experts of each row: of 30B 18 times as slow on a CPU
        alone = zip(hidden.split(1), index.split(1), weights.split(1), strict=True)
        return torch.cat([grouped(module, *row) for row in alone])

    moe.ALL_EXPERTS_FUNCTIONS.register(EXPERTS, experts)
    model.set_experts_implementation(EXPERTS)
