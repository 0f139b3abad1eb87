"""Continuous batching of speeches: each step advances all that have what they need, and waits for none that has not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from components.generator.talker_model import Code, TalkerModel
from components.llm.model import PROMPT_ROWS, STEP_ROWS
from cornstalk.errors import EngineError

Draw = Callable[[Any, Sequence[int]], int]
"""Logits [codes] float32 and the codes before -> code. Called once per code, in order."""
_END: Final = -1


class Speech:
    """One sequence of up to `limit` codes, which begins with those it is `forced` to.

    A code is drawn for each forced one as well, and thrown away: the draws after them are those of an undisturbed run.
    """

    def __init__(self, limit: int, draw: Draw, check: Callable[[], None], forced: Sequence[int]) -> None:
        self.limit, self.draw, self.check, self.forced = limit, draw, check, list(forced)
        self.prompt: Any = None  # [n, size], the row of the first token of the reply included
        self.rows: list[Any] = []  # [size] each: of the other tokens of the reply, and the two that end it
        self.whole = False  # no more rows come
        self.read = 0  # rows of the prompt in memory
        self.codes: list[int] = []
        self.memory: Any = None
        self.ready: asyncio.Queue[int | Exception] = asyncio.Queue()  # at most `limit` codes and the end

    def row(self, index: int) -> Any:
        """What goes with the `index`-th code; the last row goes with all codes after it. None: it is not there yet."""
        if index < len(self.rows):
            return self.rows[index]
        return self.rows[-1] if self.whole and self.rows else None

    def reads(self) -> bool:
        return self.prompt is not None and self.read < len(self.prompt)

    def speaks(self) -> bool:
        """Whether the next step can advance it."""
        return bool(self.codes) and self.row(len(self.codes) - 1) is not None

    def take(self, drawn: int) -> None:
        """Keeps a code: the drawn one, if it is not forced to another."""
        self.codes.append(self.forced.pop(0) if self.forced else drawn)


class Batch:
    """Steps while a speech can be advanced; sleeps while all wait for rows."""

    def __init__(self, model: TalkerModel) -> None:
        self._model = model
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="talker")
        self._members: list[Speech] = []
        self._stepper: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._just_read = False
        self.last = 0  # members of the last step
        self.longest = 0.0

    async def codes(self, speech: Speech) -> AsyncGenerator[int, None]:
        """Codes as they come, without the one that ends them. Use aclosing: closed, the speech leaves.

        Raises what its check raises, what it is failed with, and a transient EngineError if a step fails.
        """
        if len(self._members) >= STEP_ROWS:
            raise EngineError(f"{STEP_ROWS} speeches are running", transient=True)
        self._members.append(speech)
        self._news.set()
        if self._stepper is None:
            self._stepper = asyncio.create_task(self._run())
        try:
            while (code := await speech.ready.get()) != _END:
                if isinstance(code, Exception):
                    raise code
                yield code
        finally:
            self._leave(speech)
            self._news.set()

    def fed(self) -> None:
        """Some speech has more rows, or all of them."""
        self._news.set()

    async def close(self) -> None:
        """Ends what still runs, after the step that runs."""
        if self._stepper is not None:
            self._stepper.cancel()
            await asyncio.wait([self._stepper])
        self._fail(list(self._members), EngineError("the engine was stopped", transient=True))
        self._thread.shutdown()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._wanted():
                step, members = self._next()
                if not members:
                    self._news.clear()
                    await self._news.wait()
                    continue
                began = time.perf_counter()
                try:
                    fresh = await loop.run_in_executor(self._thread, step, members)
                except Exception as error:
                    self._fail(members, EngineError(f"a step failed: {error}", transient=True))
                    continue
                self.last, self.longest = len(members), max(self.longest, time.perf_counter() - began)
                for speech, codes in zip(members, fresh, strict=True):
                    self._deliver(speech, codes)
        finally:
            self._stepper = None

    def _wanted(self) -> bool:
        """Ends who is cancelled, and who has nothing to say; True if someone is left."""
        for speech in list(self._members):
            try:
                speech.check()
            except Exception as error:
                self._fail([speech], error)
            if speech.whole and speech.prompt is None:
                self._deliver(speech, [], ended=True)
        return bool(self._members)

    def _next(self) -> tuple[Callable[[list[Speech]], list[list[int]]], list[Speech]]:
        """One that reads its prompt, or all that can speak; by turns if there are both."""
        reading = [s for s in self._members if s.reads()]
        speaking = [s for s in self._members if s.speaks()]
        self._just_read = bool(reading) and not (self._just_read and speaking)
        if not self._just_read:
            return self._advance, speaking
        self._members.remove(reading[0])
        self._members.append(reading[0])  # the next part is another's, if another reads
        return self._read, reading[:1]

    def _leave(self, speech: Speech) -> None:
        if speech in self._members:
            self._members.remove(speech)

    def _fail(self, members: Sequence[Speech], error: Exception) -> None:
        for speech in members:
            self._leave(speech)
            speech.ready.put_nowait(error)

    def _deliver(self, speech: Speech, codes: Sequence[int], ended: bool = False) -> None:
        ends = self._model.ends
        for code in codes:
            if code not in ends:
                speech.ready.put_nowait(code)
        if ended or len(speech.codes) >= speech.limit or (codes and codes[-1] in ends):
            self._leave(speech)
            speech.ready.put_nowait(_END)

    def _read(self, members: list[Speech]) -> list[list[int]]:
        (speech,) = members
        if speech.memory is None:
            speech.memory = self._model.memory(len(speech.prompt) + speech.limit)
        part = speech.prompt[speech.read : speech.read + PROMPT_ROWS]
        logits = self._model.read(speech.memory, speech.read, part)
        speech.read += len(part)
        if speech.reads():
            return [[]]
        speech.take(speech.draw(logits, speech.codes))
        return [speech.codes[-1:]]

    def _advance(self, members: list[Speech]) -> list[list[int]]:
        """Forced codes go in one step as far as their rows are there and there is room."""
        spare = STEP_ROWS - len(members)
        inputs, counts = [], []
        for s in members:
            first = len(s.codes) - 1
            said = [s.codes[-1], *s.forced[: min(spare, s.limit - len(s.codes) - 1)]]
            rows = [row for i in range(len(said)) if (row := s.row(first + i)) is not None]
            spare -= len(rows) - 1
            counts.append(len(rows))
            start = len(s.prompt) + first
            inputs += [
                Code(s.memory, start + i, code, row) for i, (code, row) in enumerate(zip(said, rows, strict=False))
            ]
        logits = iter(self._model.step(inputs))
        fresh = []
        for s, count in zip(members, counts, strict=True):
            before = len(s.codes)
            for _ in range(count):
                s.take(s.draw(next(logits), s.codes))
            fresh.append(s.codes[before:])
        return fresh
