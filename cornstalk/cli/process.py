"""One process of the tree, kept running: started again with back-off whenever it ends by itself."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from cornstalk.cli.state import Running

log = logging.getLogger("cornstalk.up")

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0
STEADY: Final = 10.0
"""Seconds alive after which the next end is a new trouble and starts again at the first pause."""
LOG_LIMIT: Final = 16 << 20
"""Bytes of a log file; beyond it the file moves to `<name>.log.1`."""


class Process(Protocol):
    """What can be kept running."""

    name: str

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """None while it runs."""

    def start(self) -> None:
        """Raises when it cannot be started; tried again later."""

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


class Child:
    """A command in a session of its own, so that a Ctrl-C in the terminal reaches only the supervisor."""

    def __init__(self, name: str, argv: Sequence[str], env: Mapping[str, str], logs: Path) -> None:
        self.name = name
        self.log = logs / f"{name}.log"
        self._argv, self._env = argv, env
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    def poll(self) -> int | None:
        return self._process.poll() if self._process else 0

    def start(self) -> None:
        rotate(self.log)
        with open(self.log, "ab") as output:
            self._process = subprocess.Popen(
                self._argv,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def terminate(self) -> None:
        if self._process:
            self._process.terminate()

    def kill(self) -> None:
        if self._process:
            self._process.kill()


def rotate(path: Path) -> None:
    """Moves a log that is over its limit aside, over the one moved before."""
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > LOG_LIMIT:
            path.replace(path.with_name(f"{path.name}.1"))


class Kept:
    """Keeps one process running from `start` to `stop`. `changed` is called after each start and end."""

    def __init__(self, process: Process, changed: Callable[[], None]) -> None:
        self.process = process
        self.starts = 0
        self._changed = changed
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts it in this call, then watches it. What the first start raises, this raises."""
        self.process.start()
        self.starts = 1
        self._task = asyncio.get_running_loop().create_task(self._keep(), name=f"keep {self.process.name}")

    @property
    def running(self) -> Running:
        """For the state file."""
        up = self.process.poll() is None
        return Running(self.process.name, self.process.pid if up else 0, self.starts)

    async def stop(self, grace: float) -> None:
        """SIGTERM, after `grace` seconds SIGKILL; returns when it is gone. Idempotent."""
        if self._task is None:
            return
        self._stopping.set()
        if self.process.poll() is None:
            self.process.terminate()
        try:
            await asyncio.wait_for(asyncio.shield(self._task), grace)
        except TimeoutError:
            log.warning("%s does not end: killed", self.process.name)
            self.process.kill()
            await self._task

    def kill(self) -> None:
        """SIGKILL, and no further start."""
        self._stopping.set()
        if self.process.poll() is None:
            self.process.kill()

    async def _keep(self) -> None:
        pause, begun = FIRST_PAUSE, time.monotonic()
        while True:
            if self.process.poll() is None:
                self._changed()
                await _ended(self.process)
            code = self.process.poll()
            self._changed()
            if self._stopping.is_set():
                return
            if time.monotonic() - begun > STEADY:
                pause = FIRST_PAUSE
            log.warning("%s ended with %s: starts again in %.1f s", self.process.name, code, pause)
            if await self._stopped_within(pause):
                return
            pause, begun = min(LONGEST_PAUSE, pause * 2), time.monotonic()
            self._start_again()

    async def _stopped_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return False
        return True

    def _start_again(self) -> None:
        self.starts += 1
        try:
            self.process.start()
        except Exception as error:
            log.error("%s does not start: %s", self.process.name, error)


async def _ended(process: Process) -> None:
    """Returns when a child of this process has ended; the poll that follows finds it so."""
    try:
        watched = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(watched, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(watched)
        os.close(watched)
