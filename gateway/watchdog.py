"""Names the app and line of a pass that holds up the event loop."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import FrameType
from typing import Final

from cornstalk.app import APP_FILE

log = logging.getLogger(__name__)

LIMIT: Final = 1.0
"""Seconds a pass may take before it is named."""


class Watchdog:
    """One thread that looks at the pass now running on the event loop's thread. It only names; it stops nothing."""

    def __init__(self) -> None:
        self._running: tuple[str, float, int] | None = None
        self._named: tuple[str, float, int] | None = None
        threading.Thread(target=self._look, name="watchdog", daemon=True).start()

    @staticmethod
    @lru_cache(maxsize=1)
    def shared() -> Watchdog:
        """The one of this process."""
        return Watchdog()

    @contextmanager
    def watch(self, app: str) -> Iterator[None]:
        """Around one pass of `app`."""
        self._running = (app, time.monotonic(), threading.get_ident())
        try:
            yield
        finally:
            self._running = None

    def _look(self) -> None:
        while True:
            time.sleep(LIMIT / 4)
            running = self._running
            if running is None or running is self._named:
                continue
            app, since, thread = running
            if time.monotonic() - since > LIMIT and (frame := sys._current_frames().get(thread)) is not None:
                self._named = running
                log.error(
                    "a pass of app %s has run for over %.0f s, at %s; invoke must not compute or block",
                    app,
                    LIMIT,
                    _line(frame),
                )


def _line(innermost: FrameType) -> str:
    """Where in the app file it is, whatever library that has called."""
    frame: FrameType | None = innermost
    while frame is not None and not frame.f_code.co_filename.startswith(APP_FILE):
        frame = frame.f_back
    frame = frame or innermost
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
