"""The command as a user runs it: another process, its output and exit code."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
APPS = Path(__file__).parent / "apps"


def environment(**extra: str) -> dict[str, str]:
    plain = {k: v for k, v in os.environ.items() if not k.startswith("CORNSTALK_") or k == "CORNSTALK_CACHE"}
    return {**plain, "PYTHONPATH": str(ROOT), **extra}


def argv(*args: str | Path) -> list[str]:
    return [sys.executable, "-m", "cornstalk.cli", *map(str, args)]


def cornstalk(*args: str | Path, within: float = 60.0, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv(*args), capture_output=True, text=True, timeout=within, env=environment(**env))


@contextmanager
def started(args: list[str], within: float = 90.0, **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A command that runs while a test reads what it says. It is killed after `within` seconds, so each read ends."""
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": environment(), **options}
    with subprocess.Popen(args, **given) as process:
        overdue = threading.Timer(within, process.kill)
        overdue.start()
        try:
            yield process
        finally:
            overdue.cancel()
            process.kill()


def wait_until(check: Callable[[], object], within: float = 10.0) -> None:
    """For tests without an event loop: `tests.waiting.eventually` is for those that have one."""
    end = time.monotonic() + within
    while not check():
        assert time.monotonic() < end, f"not within {within} s"
        time.sleep(0.02)
