"""What vLLM says of its steps, as every engine of ours says it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Steps:
    """Counts since start. Written and read on the event loop."""

    def __init__(self) -> None:
        self.steps = self.batch = 0
        self.longest = 0.0
        self._asked = 0
        self._last = 0.0

    @contextmanager
    def asked(self) -> Iterator[None]:
        """While a request is with vLLM: between two of them no step lasts."""
        if not self._asked:
            self._last = time.monotonic()
        self._asked += 1
        try:
            yield
        finally:
            self._asked -= 1

    def took(self, batch: int) -> None:
        """A step of `batch` sequences has ended."""
        now = time.monotonic()
        self.longest = max(self.longest, now - self._last)
        self._last, self.batch = now, batch
        self.steps += 1

    def stats(self) -> dict[str, float]:
        return {"batch": float(self.batch), "longest_step_s": self.longest, "steps": float(self.steps)}


def counted(steps: Steps) -> Callable[[Any, int], Any]:
    """A stat logger factory of vLLM that feeds `steps`."""
    from vllm.v1.metrics.loggers import StatLoggerBase

    class Logger(StatLoggerBase):  # type: ignore[misc]
        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
            return

        def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
            if scheduler_stats is not None and iteration_stats is not None:
                steps.took(scheduler_stats.num_running_reqs)

        def log_engine_initialized(self) -> None:
            return

    return Logger
