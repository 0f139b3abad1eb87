"""Waiting in tests: poll with a deadline, never sleep for a guess."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def eventually(check: Callable[[], T | Awaitable[T]], within: float = 5.0, every: float = 0.01) -> T:
    """The first truthy result of `check`; AssertionError with the last one after `within` seconds."""
    end = time.monotonic() + within
    while True:
        result = check()
        if inspect.isawaitable(result):
            result = await result
        if result:
            return result  # type: ignore[return-value]
        if time.monotonic() > end:
            raise AssertionError(f"not within {within} s; last result: {result!r}")
        await asyncio.sleep(every)
