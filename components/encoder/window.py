"""Windowed batching: what waits is taken together, by shape, as much as memory allows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from components.encoder.tower import Picture
from cornstalk.errors import EngineError

WINDOW: Final = 0.01
"""Seconds that a step waits at most for pictures that are being prepared."""
MOST: Final = 16
"""Pictures in one step."""
ROOM: Final = 16_384
"""Patches in one step; a picture that has more goes alone."""

Encode = Callable[[Sequence[Picture]], list[Any]]


@dataclass(eq=False)
class _Waiting:
    picture: Picture
    check: Callable[[], None]
    done: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Window:
    """Steps of one thread, while something waits. The one that waits longest says the shape of the next step."""

    def __init__(self, encode: Encode, window: float = WINDOW, most: int = MOST, room: int = ROOM) -> None:
        self._encode, self._window, self._most, self._room = encode, window, most, room
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="encoder")
        self._waiting: list[_Waiting] = []
        self._coming = 0
        self._all_here = asyncio.Event()
        self._stepper: asyncio.Task[None] | None = None
        self.steps = self.last = self.largest = 0  # of the last step, of all: its pictures
        self.longest = 0.0

    @contextmanager
    def coming(self) -> Iterator[None]:
        """While a picture is prepared: the next step may wait for it."""
        self._coming += 1
        self._all_here.clear()
        try:
            yield
        finally:
            self._coming -= 1
            if not self._coming:
                self._all_here.set()

    async def encode(self, picture: Picture, check: Callable[[], None]) -> Any:
        """What the tower makes of it. Raises what `check` raises, and a transient EngineError if the step fails."""
        mine = _Waiting(picture, check)
        self._waiting.append(mine)
        if self._stepper is None:
            self._stepper = asyncio.create_task(self._run())
        return await mine.done

    async def close(self) -> None:
        """After the step that runs; who still waits gets a transient EngineError."""
        if self._stepper is not None:
            self._stepper.cancel()
            await asyncio.wait([self._stepper])
        self._fail(self._waiting, EngineError("the engine was stopped", transient=True))
        self._thread.shutdown()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while step := await self._gathered():
                began = time.perf_counter()
                try:
                    made = await loop.run_in_executor(self._thread, self._encode, [w.picture for w in step])
                except Exception as error:
                    self._fail(step, EngineError(f"a step failed: {error}", transient=True))
                    continue
                except BaseException:
                    self._fail(step, EngineError("the engine was stopped", transient=True))
                    raise
                self.steps, self.last, self.largest = self.steps + 1, len(step), max(self.largest, len(step))
                self.longest = max(self.longest, time.perf_counter() - began)
                for waiting, tensor in zip(step, made, strict=True):
                    if not waiting.done.done():
                        waiting.done.set_result(tensor)
        finally:
            self._stepper = None

    async def _gathered(self) -> list[_Waiting]:
        """The next step. Who is alone does not wait."""
        if self._coming and len(self._waiting) < self._most:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._all_here.wait(), self._window)
        return self._next()

    def _next(self) -> list[_Waiting]:
        """Who goes together; who is not wanted any more leaves."""
        wanted = []
        for waiting in self._waiting:
            try:
                waiting.check()
            except Exception as error:
                self._fail([waiting], error)
            if not waiting.done.done():  # also if nobody awaits it any more
                wanted.append(waiting)
        step: list[_Waiting] = []
        patches = 0
        for waiting in wanted:
            fits = not step or patches + waiting.picture.patches <= self._room
            if waiting.picture.bucket == wanted[0].picture.bucket and fits and len(step) < self._most:
                step.append(waiting)
                patches += waiting.picture.patches
        self._waiting = [waiting for waiting in wanted if waiting not in step]
        return step

    def _fail(self, some: Sequence[_Waiting], error: Exception) -> None:
        for waiting in some:
            if not waiting.done.done():
                waiting.done.set_exception(error)
