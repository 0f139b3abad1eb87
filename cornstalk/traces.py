"""Where an unexpected error came from, for a log: files and lines, never a message that may quote a user's data."""

from __future__ import annotations

import traceback


def where(error: BaseException) -> str:
    """The error's class and the lines it went through, innermost last; for its causes too."""
    parts = [_one(error)]
    while (cause := error.__cause__) is not None:
        parts.append(_one(cause))
        error = cause
    return "\ncaused by ".join(parts)


def _one(error: BaseException) -> str:
    lines = "".join(traceback.format_tb(error.__traceback__))
    return f"{type(error).__name__}\n{lines}".rstrip()
