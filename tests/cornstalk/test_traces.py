"""A log says where an error came from, and nothing of what a user sent."""

from __future__ import annotations

from cornstalk.traces import where


def fails(secret: str) -> None:
    try:
        {}[secret]  # type: ignore[var-annotated]
    except KeyError as error:
        raise ValueError(f"cannot use {secret}") from error


def test_the_lines_are_there_and_the_data_is_not() -> None:
    try:
        fails("my prompt")
    except ValueError as error:
        text = where(error)
    assert text.startswith("ValueError\n")
    assert "caused by KeyError" in text
    assert "test_traces.py" in text
    assert "my prompt" not in text.replace('fails("my prompt")', "")
