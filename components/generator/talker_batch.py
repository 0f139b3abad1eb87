"""Continuous batching of speeches of Qwen2.5-Omni: each step advances all that have what they need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from components.continuous import Stage
from components.generator.speech import Dice, Frame, Limits, Speech, Talking, checked, too_long
from components.generator.talker_model import Code, TalkerModel
from components.llm.model import PROMPT_ROWS, STEP_ROWS
from components.qwen_omni import OmniFolder

TOP_K: Final = 40
TOP_P: Final = 0.8


class CodeSpeech(Speech):
    """Frames of one code; it stops at a code that `ends` it. The prompt comes first, in one tensor."""

    def __init__(self, model: TalkerModel, *args: Any) -> None:
        super().__init__(*args)
        self._model = model
        self._first: Any = None
        self.prompt: Any = None  # [n, size], the row of the first token of the reply included
        self.codes: list[int] = []

    def hear(self, tensor: Any) -> None:
        rows = checked(tensor, self._model.size)
        if self._first is None:
            self._first = rows
        elif self.prompt is None:
            self._begin(rows[:1])
            self.rows += rows[1:]
        else:
            self.rows += rows

    def _begin(self, row: Any) -> None:
        import torch

        most = self._model.context - len(self._first) - 1
        if most < 1:
            raise too_long(len(self._first), self._model.context - 2)
        self.limit = min(self.limit, most)
        self.prompt = torch.cat([self._first, row])

    @property
    def ended(self) -> bool:
        """Also if it has nothing to say: all rows are there, and none of them is of a reply."""
        silent = self.whole and self.prompt is None
        return silent or len(self.codes) >= self.limit or bool(self.codes and self.codes[-1] in self._model.ends)

    def row(self, index: int) -> Any:
        """What goes with the `index`-th code; the last row goes with all codes after it. None: it is not there yet."""
        whole = self.whole  # before the rows are counted: they arrive while steps run
        if index < len(self.rows):
            return self.rows[index]
        return self.rows[-1] if whole and self.rows else None

    def reads(self) -> bool:
        return self.prompt is not None and self.read < len(self.prompt)

    def speaks(self) -> bool:
        """Whether the next step can advance it."""
        return bool(self.codes) and self.row(len(self.codes) - 1) is not None

    def said(self, start: int) -> list[Frame]:
        """Its codes from `start` on, without one that ends it."""
        return [(code,) for code in self.codes[start:] if code not in self._model.ends]

    def take(self, logits: Any) -> None:
        """Keeps a code: the drawn one, if it is not forced to another."""
        drawn = self.dice.pick(self.limits(logits, {*self._model.before, *self.codes}))
        self.codes.append(self.forced.pop(0)[0] if self.forced else drawn)


class CodeBatch(Talking[CodeSpeech]):
    """Codes without the one that ends them."""

    frame = ()

    def __init__(self, folder: OmniFolder, dtype: Any, device: str) -> None:
        super().__init__("talker", STEP_ROWS)
        self._model = TalkerModel(folder, dtype, device)
        self._reading = Stage(self._read, 1)
        self._speaking = Stage(self._advance, STEP_ROWS)

    def speech(
        self, inputs: Mapping[str, Any], seed: int, check: Callable[[], None], forced: Sequence[int]
    ) -> CodeSpeech:
        limits = Limits(inputs, [self._model.begin], TOP_K, TOP_P)
        dice = Dice(seed, inputs["temperature"])
        return CodeSpeech(self._model, inputs["max_codes"], dice, limits, check, [(code,) for code in forced])

    def stage(self, member: CodeSpeech) -> Stage[CodeSpeech, Frame] | None:
        if member.reads():
            return self._reading
        return self._speaking if member.speaks() else None

    def _read(self, members: list[CodeSpeech]) -> list[list[Frame]]:
        (speech,) = members
        if speech.memory is None:
            speech.memory = self._model.memory(len(speech.prompt) + speech.limit)
        part = speech.prompt[speech.read : speech.read + PROMPT_ROWS]
        logits = self._model.read(speech.memory, speech.read, part)
        speech.read += len(part)
        if speech.reads():
            return [[]]
        speech.take(logits)
        return [speech.said(0)]

    def _advance(self, members: list[CodeSpeech]) -> list[list[Frame]]:
        """Forced codes go in one step as far as their rows are there and there is room."""
        spare = STEP_ROWS - len(members)
        inputs, counts = [], []
        for s in members:
            first = len(s.codes) - 1
            told = s.forced[: min(spare, s.limit - len(s.codes) - 1)]
            said = [s.codes[-1], *(code for (code,) in told)]
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
                s.take(next(logits))
            fresh.append(s.said(before))
        return fresh
