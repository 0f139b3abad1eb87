"""Loops that live as long as their owner: whoever relies on one would not see that it has ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Never

from cornstalk.traces import where

log = logging.getLogger(__name__)

PAUSE: Final = 1.0
"""Seconds after a step that failed."""


async def forever(step: Callable[[], Awaitable[object]], what: str) -> Never:
    """Repeats `step`, which waits for its own time, until cancelled.

    An error that it did not foresee is logged with its lines, and the loop goes on: each step looks at things anew.
    """
    while True:
        try:
            await step()
        except Exception as error:
            log.error("%s: a step failed, the next one follows: %s", what, where(error))
            await asyncio.sleep(PAUSE)
