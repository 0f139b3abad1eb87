"""Names the app and line of a pass that holds up the event loop, and says when it will not come back."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import FrameType
from typing import Final, NamedTuple

from cornstalk.app import APP_FILE

log = logging.getLogger(__name__)

EVERY: Final = 0.25
"""Seconds between two looks."""
LIMIT: Final = 1.0
"""Seconds a pass may take before it is named."""
STUCK: Final = 10.0
"""Seconds after which a pass is given up: all other requests of this process wait for it."""


class Running(NamedTuple):
    """A pass: app, its version, and the thread of the event loop."""

    app: str
    version: str
    thread: int


class Watchdog:
    """One thread that looks at the pass now running on the event loop's thread. It only says so; it stops nothing.

    Time is counted in its own looks: a process that was stopped for a while holds nobody up by itself.
    """

    def __init__(self) -> None:
        self.on_stuck: Callable[[str, str, str], None] | None = None
        """Called in the watchdog's thread with app, version and line of a pass that is STUCK."""
        self._running: Running | None = None
        threading.Thread(target=self._look, name="watchdog", daemon=True).start()

    @staticmethod
    @lru_cache(maxsize=1)
    def shared() -> Watchdog:
        """The one of this process."""
        return Watchdog()

    @contextmanager
    def watch(self, app: str, version: str) -> Iterator[None]:
        """Around one pass of `app`."""
        self._running = Running(app, version, threading.get_ident())
        try:
            yield
        finally:
            self._running = None

    def _look(self) -> None:
        seen, looks = None, 0
        while True:
            time.sleep(EVERY)
            running = self._running
            looks = looks + 1 if running is not None and running is seen else 0
            seen = running
            if running is None or looks not in (LIMIT / EVERY, STUCK / EVERY):
                continue
            if (frame := sys._current_frames().get(running.thread)) is not None:
                self._say(running, _line(frame), looks * EVERY)

    def _say(self, running: Running, line: str, seconds: float) -> None:
        log.error(
            "a pass of app %s has run for over %.0f s, at %s; invoke must not compute or block",
            running.app,
            seconds,
            line,
        )
        if seconds >= STUCK and self.on_stuck is not None:
            self.on_stuck(running.app, running.version, line)


def _line(innermost: FrameType) -> str:
    """Where in the app file it is, whatever library that has called."""
    frame: FrameType | None = innermost
    while frame is not None and not frame.f_code.co_filename.startswith(APP_FILE):
        frame = frame.f_back
    frame = frame or innermost
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
