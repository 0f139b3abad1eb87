"""What counts as the same output."""

from __future__ import annotations

import pytest

from tests.docs.blocks import agrees


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("a b\n", "a  b\n\n", True),
        ("a", "a b", False),
        ("a…", "a b", True),
        ("…b", "a b", True),
        ("a … c … e", "a b c d e", True),
        ("a…c", "c", False),
        ("a … a", "a", False),
        ("ab…bc", "abc", False),
        ("… x …", "no", False),
        ("", "", True),
        ("", "x", False),
    ],
)
def test_agrees(expected: str, printed: str, same: bool) -> None:
    assert agrees(expected, printed) is same
