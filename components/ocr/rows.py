"""The order in which people read pieces of text on a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Corners = Sequence[Sequence[float]]


@dataclass
class _Row:
    middle: float
    height: float
    pieces: list[tuple[float, int]] = field(default_factory=list)  # (left edge, index)


def in_rows(boxes: Sequence[Corners]) -> list[list[int]]:
    """Indices of boxes by row: from top to bottom, within a row from left to right.

    A box joins the row above it when their middles are less than half the lower of the two heights apart.
    """
    found: list[_Row] = []
    for index in sorted(range(len(boxes)), key=lambda i: _span(boxes[i])):
        middle, height = _span(boxes[index])
        row = found[-1] if found else None
        if row is None or middle - row.middle >= min(height, row.height) / 2:
            row = _Row(middle, height)
            found.append(row)
        row.pieces.append((min(x for x, _ in boxes[index]), index))
    return [[index for _, index in sorted(row.pieces)] for row in found]


def _span(box: Corners) -> tuple[float, float]:
    """Vertical middle and height."""
    top, bottom = min(y for _, y in box), max(y for _, y in box)
    return (top + bottom) / 2, bottom - top
