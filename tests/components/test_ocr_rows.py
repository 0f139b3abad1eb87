"""Pieces of text in reading order."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.ocr.rows import in_rows


def box(x: float, y: float, width: float = 100, height: float = 20, slant: float = 0) -> list[list[float]]:
    return [[x, y], [x + width, y + slant], [x + width, y + height + slant], [x, y + height]]


@pytest.mark.parametrize(
    ("boxes", "rows"),
    [
        ([], []),
        ([box(0, 0)], [[0]]),
        ([box(0, 50), box(0, 0)], [[1], [0]]),
        ([box(200, 3), box(0, 0)], [[1, 0]]),
        ([box(0, 0, slant=6), box(120, 4), box(0, 30), box(120, 33, height=14)], [[0, 1], [2, 3]]),
        ([box(0, 0, height=60), box(120, 5, height=15), box(120, 45, height=15)], [[1], [0], [2]]),
    ],
)
def test_rows(boxes: list[list[list[float]]], rows: list[list[int]]) -> None:
    assert in_rows(boxes) == rows


@given(st.integers(1, 8), st.integers(1, 5), st.randoms(use_true_random=False))
def test_a_grid_is_read_row_by_row_however_it_is_found(rows: int, columns: int, chance: random.Random) -> None:
    cells = [(r, c) for r in range(rows) for c in range(columns)]
    chance.shuffle(cells)
    boxes = [box(c * 120 + chance.uniform(-3, 3), r * 30 + chance.uniform(-4, 4)) for r, c in cells]
    read = [[cells[i] for i in row] for row in in_rows(boxes)]
    assert read == [[(r, c) for c in range(columns)] for r in range(rows)]
