"""Runs what is async from a test, whether or not a loop is running there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def run_loop(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs to the end; inside an async test in a thread of its own, for there a loop is running."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(main())
    with ThreadPoolExecutor(1, "cornstalk.testing") as thread:
        return thread.submit(asyncio.run, main()).result()
