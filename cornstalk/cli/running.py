"""Runs what a command does. asyncio is imported for that alone: it is a fifth of what `--help` would cost."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any


def run_to_end(work: Coroutine[Any, Any, None]) -> None:
    """Raises what `work` raises."""
    import asyncio

    asyncio.run(work)
