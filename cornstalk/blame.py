"""Which pending values an exception is put down to. A wrong guess costs a pass, never the answer."""

from __future__ import annotations

import sys
import traceback
from types import FrameType
from typing import Any

from pydantic import ValidationError

from cornstalk.errors import CornstalkError, described
from cornstalk.messages import Error
from cornstalk.pending import Source, is_pending, source_of


def culprits(error: Exception) -> list[Source]:
    """Those a ValidationError names, else those in sight of the innermost frame that has any; maybe none."""
    if isinstance(error, ValidationError):
        return [source_of(e["input"]) for e in error.errors(include_url=False) if is_pending(e["input"])]
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    for frame in reversed(frames):
        if found := _in_sight(frame):
            return found
        if frame.f_code.co_name == "invoke":
            break
    return []


def _in_sight(frame: FrameType) -> list[Source]:
    near: list[Any] = list(frame.f_locals.values())
    for value in tuple(near):
        if type(value) in (list, tuple):
            near += value
        elif type(value) is dict:
            near += value.values()
    return [source_of(v) for v in near if is_pending(v)]


def user_line() -> str:
    """ "file.py:12": where user code called into Cornstalk."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_ours(frame):
        frame = frame.f_back
    return _place(frame.f_code.co_filename, frame.f_lineno) if frame is not None else "?"


def _place(filename: str, line: int | None) -> str:
    return f"{filename.rpartition('/')[2]}:{line}"


def failure(error: Exception) -> Error:
    """An error that ended `invoke`, as it travels to the client: an unexpected one with the user's line."""
    if isinstance(error, CornstalkError):
        return error.to_message()
    frames = [(f.f_code.co_filename, n) for f, n in traceback.walk_tb(error.__traceback__) if not _is_ours(f)]
    where = f" ({_place(*frames[-1])})" if frames else ""
    return Error(code="app_failed", message=described(error) + where)


def _is_ours(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__", "")
    return name.startswith(("cornstalk.", "pydantic.")) and not name.startswith("cornstalk.tasks")
