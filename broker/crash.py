"""Named crash points: where a test may kill this process, between two steps of a protocol. Off by default."""

from __future__ import annotations

import os
import signal
from collections import Counter

_NAME, _, _PASSAGE = os.environ.get("CRASH_AT", "").partition(":")
_AT = int(_PASSAGE or 1)
_passed: Counter[str] = Counter()


def crash_at(name: str) -> None:
    """SIGKILL for this process if CRASH_AT is `name`, or "name:N" and this is the N-th passage; else nothing."""
    if name != _NAME:
        return
    _passed[name] += 1
    if _passed[name] == _AT:
        os.kill(os.getpid(), signal.SIGKILL)
