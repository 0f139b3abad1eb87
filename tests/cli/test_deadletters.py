"""Ages as they are printed."""

from __future__ import annotations

import pytest

from cornstalk.cli.deadletters import age


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1.0, "0s"), (0.2, "0s"), (59.9, "59s"), (60, "1m"), (3599, "59m"), (7200, "2h"), (604_800, "7d")],
)
def test_age(seconds: float, text: str) -> None:
    assert age(seconds) == text
