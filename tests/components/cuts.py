"""Texts in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


def cut(text: str, at: Sequence[int]) -> list[str]:
    """Pieces of a text, cut at these places; some may be empty."""
    edges = [0, *sorted(min(a, len(text)) for a in at), len(text)]
    return [text[a:b] for a, b in pairwise(edges)]
