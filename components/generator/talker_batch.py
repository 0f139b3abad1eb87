"""Continuous batching of speeches: each step advances all that have what they need, and waits for none that has not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from components.continuous import ContinuousBatch, Member, Stage
from components.generator.talker_model import Code, TalkerModel
from components.llm.model import PROMPT_ROWS, STEP_ROWS

Draw = Callable[[Any, Sequence[int]], int]
"""Logits [codes] float32 and the codes before -> code. Called once per code, in order."""


class Speech(Member[int]):
    """One sequence of up to `limit` codes, which begins with those it is `forced` to and stops at one that `ends` it.

    A code is drawn for each forced one as well, and thrown away: the draws after them are those of an undisturbed run.
    """

    def __init__(
        self, limit: int, ends: frozenset[int], draw: Draw, check: Callable[[], None], forced: Sequence[int]
    ) -> None:
        super().__init__(check)
        self.limit, self.ends, self.draw, self.forced = limit, ends, draw, list(forced)
        self.prompt: Any = None  # [n, size], the row of the first token of the reply included
        self.rows: list[Any] = []  # [size] each: of the other tokens of the reply, and the two that end it
        self.whole = False  # no more rows come
        self.read = 0  # rows of the prompt in memory
        self.codes: list[int] = []
        self.memory: Any = None

    @property
    def ended(self) -> bool:
        """Also if it has nothing to say: all rows are there, and none of them is of a reply."""
        silent = self.whole and self.prompt is None
        return silent or len(self.codes) >= self.limit or bool(self.codes and self.codes[-1] in self.ends)

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

    def said(self, start: int) -> list[int]:
        """Its codes from `start` on, without one that ends it."""
        return [code for code in self.codes[start:] if code not in self.ends]

    def take(self, drawn: int) -> None:
        """Keeps a code: the drawn one, if it is not forced to another."""
        self.codes.append(self.forced.pop(0) if self.forced else drawn)


class Batch(ContinuousBatch[Speech, int]):
    """Codes without the one that ends them. A speech that waits for rows holds up nobody."""

    def __init__(self, model: TalkerModel) -> None:
        super().__init__("talker", STEP_ROWS)
        self._model = model
        self._reading = Stage(self._read, 1)
        self._speaking = Stage(self._advance, STEP_ROWS)

    def stage(self, member: Speech) -> Stage[Speech, int] | None:
        if member.reads():
            return self._reading
        return self._speaking if member.speaks() else None

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
        return [speech.said(0)]

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
            fresh.append(s.said(before))
        return fresh
