"""What a model reads before it answers: tokens, and rows of embeddings that stand in place of some of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Prompt:
    """`rows` [1 + layers, n, size] take the places of the n tokens inside `spans`, in order.

    `rows[0]` stand for their embeddings; `rows[1 + i]` are added to what layer i puts out (deepstack features). The
    tokens at those places are placeholders. `positions` [axes, tokens] where they are not 0, 1, 2, ...
    """

    tokens: Sequence[int]
    rows: Any = None
    spans: Sequence[tuple[int, int]] = ()
    """[start, end) of each picture or sound, in order, none touching the next unless they are one."""
    positions: Any = None
    both_ways: bool = False
    """Tokens of a span see all of it, also those after them."""

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def shift(self) -> float:
        """What is added to the index of a token of the answer to have its position."""
        return 0 if self.positions is None else float(self.positions.max()) + 1 - len(self.tokens)

    def end_of_part(self, start: int, most: int) -> int:
        """Where the part that begins at `start` ends: after `most` tokens, or with the span that must not be cut."""
        end = min(start + most, len(self.tokens))
        if not self.both_ways:
            return end
        return next((last for first, last in self.spans if first < end < last), end)

    def places(self, start: int, end: int) -> tuple[list[int], slice]:
        """The indices in [start, end) that rows stand for, and which rows."""
        inside = [at for first, last in self.spans for at in range(max(first, start), min(last, end))]
        before = sum(max(0, min(last, start) - first) for first, last in self.spans)
        return inside, slice(before, before + len(inside))
