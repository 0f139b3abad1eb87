"""Continuous batching of speeches of Qwen3-Omni: a frame of codes at a time, the first code and then the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from components.continuous import Stage
from components.generator.speech import Dice, Frame, Limits, Speech, Talking, checked, too_long
from components.generator.talker_moe import ADDED, MARKS, MoeTalker, Opening, Place
from components.llm.memory import Memory
from components.llm.model import PROMPT_ROWS, STEP_ROWS
from components.qwen_omni import OmniFolder
from cornstalk.errors import EngineError

TOP_K: Final = 50
TOP_P: Final = 1.0
_SPECIAL: Final = 1024
"""Codes at the end of the first codebook of which only the one that ends the speech is ever drawn."""


class FrameSpeech(Speech):
    """It stops at a first code that ends it. What it reads before it speaks comes in four tensors, then its rows."""

    def __init__(self, model: MoeTalker, *args: Any) -> None:
        super().__init__(*args)
        self._model = model
        self._told: list[Any] = []
        self.opening: Opening | None = None
        self.prompt: tuple[Any, Any] | None = None  # rows and positions, once it is computed
        self.frames: list[Frame] = []
        self.state: Any = None  # [size], from which `first` was drawn
        self.first: int | None = None  # of the next frame, whose other codes are not drawn yet

    def hear(self, tensor: Any) -> None:
        if len(self._told) < 4:
            self._told.append(tensor)
            return
        rows = checked(tensor, self._model.size)
        if self.opening is None:
            self.opening = _opening(self._told, rows[0], self._model)
            most = self._model.context - len(self.opening)
            if most < 1:
                raise too_long(len(self.opening) - ADDED, self._model.context - ADDED - 1)
            self.limit = min(self.limit, most)
            rows = rows[1:]
        self.rows += rows

    @property
    def ended(self) -> bool:
        """Also if it has nothing to say: all is there, and there is no reply."""
        silent = self.whole and self.opening is None
        return silent or len(self.frames) >= self.limit or self.first == self._model.end

    def row(self, index: int) -> Any:
        """What goes with the `index`-th frame: once all rows were read, what ends a text, then padding. None: it is not
        there yet.
        """
        whole = self.whole  # before the rows are counted: they arrive while steps run
        if index < len(self.rows):
            return self.rows[index]
        if not whole or self.opening is None:
            return None
        return self.opening.rows[-2 if index == len(self.rows) else -1]

    def reads(self) -> bool:
        return self.opening is not None and self.read < len(self.opening)

    def speaks(self) -> bool:
        """Whether a step of the decoder can advance it."""
        return bool(self.frames) and self.row(len(self.frames) - 1) is not None

    def take(self, state: Any, logits: Any) -> None:
        """Draws the first code of the next frame; all of it is there if it is forced."""
        drawn = self.dice.pick(self.limits(logits, [frame[0] for frame in self.frames]))
        if not self.forced:
            self.state, self.first = state, drawn
            return
        for _ in range(self._model.groups - 1):
            self.dice.skip(self._model.others)
        self.frames.append(self.forced.pop(0))


class FrameBatch(Talking[FrameSpeech]):
    """Whole frames, without the one that ends the speech. Stages take turns: reading, first codes, other codes."""

    def __init__(self, folder: OmniFolder, dtype: Any, device: str) -> None:
        super().__init__("talker", STEP_ROWS)
        self._model = model = MoeTalker(folder, dtype, device)
        self.frame = (model.groups,)
        self._suppressed = [code for code in range(model.codes - _SPECIAL, model.codes) if code != model.end]
        self._reading = Stage(self._read, 1)
        self._speaking = Stage(self._advance, STEP_ROWS)
        self._completing = Stage(self._complete, STEP_ROWS)

    def speech(
        self, inputs: Mapping[str, Any], seed: int, check: Callable[[], None], forced: Sequence[int]
    ) -> FrameSpeech:
        groups = self._model.groups
        told = [tuple(forced[i : i + groups]) for i in range(0, len(forced), groups)]
        limits = Limits(inputs, self._suppressed, TOP_K, TOP_P)
        return FrameSpeech(self._model, inputs["max_codes"], Dice(seed, inputs["temperature"]), limits, check, told)

    def stage(self, member: FrameSpeech) -> Stage[FrameSpeech, Frame] | None:
        if member.reads():
            return self._reading
        if member.first is not None:
            return self._completing
        return self._speaking if member.speaks() else None

    def _read(self, members: list[FrameSpeech]) -> list[list[Frame]]:
        (s,) = members
        assert s.opening is not None
        if s.prompt is None:
            s.prompt, s.memory = self._model.opening(s.opening), Memory(len(s.opening) + s.limit)
        rows, positions = s.prompt
        part = slice(s.read, s.read + PROMPT_ROWS)
        state, logits = self._model.read(s.memory, s.read, rows[part], positions[:, part])
        s.read += len(rows[part])
        if not s.reads():
            s.take(state, logits)
        return [s.frames[:]]

    def _complete(self, members: list[FrameSpeech]) -> list[list[Frame]]:
        firsts = [s.first for s in members if s.first is not None]
        frames = self._model.others_of([s.state for s in members], firsts, [s.dice for s in members])
        for s, frame in zip(members, frames, strict=True):
            s.first = None
            s.frames.append(frame)
        return [[frame] for frame in frames]

    def _advance(self, members: list[FrameSpeech]) -> list[list[Frame]]:
        """Forced frames go in one step as far as their rows are there and there is room."""
        spare = STEP_ROWS - len(members)
        places: list[Place] = []
        counts = []
        for s in members:
            told = [s.frames[-1], *s.forced[: min(spare, s.limit - len(s.frames) - 1)]]
            before = len(places)
            places += self._places(s, told)
            counts.append(len(places) - before)
            spare -= counts[-1] - 1
        states, logits = self._model.step(places)
        drawn = iter(zip(states, logits, strict=True))
        fresh = []
        for s, count in zip(members, counts, strict=True):
            before = len(s.frames)
            for _ in range(count):
                s.take(*next(drawn))
            fresh.append(s.frames[before:])
        return fresh

    def _places(self, s: FrameSpeech, frames: Sequence[Frame]) -> list[Place]:
        """Of the last frame of a speech and those that it is forced to next, as far as their rows are there."""
        assert s.prompt is not None
        first, start = len(s.frames) - 1, len(s.prompt[0])
        position = float(s.prompt[1][0, -1]) + 1
        return [
            Place(s.memory, start + first + i, position + first + i, frame, row)
            for i, frame in enumerate(frames)
            if (row := s.row(first + i)) is not None
        ]


def _opening(told: Sequence[Any], first: Any, model: MoeTalker) -> Opening:
    """Raises EngineError bad_rows."""
    rows, media, positions, speaker = told
    count = checked(rows, model.size).shape[0] - MARKS
    given = [list(tensor.shape) for tensor in (media, positions, speaker)]
    if count < 1 or given != [[count], [3, count], [1]] or not 0 <= int(speaker) < model.codes:
        raise EngineError(
            f"{rows.shape[0]} rows, and beside them {given}, are not of a thinker of this model", "bad_rows"
        )
    return Opening(rows, media.bool(), positions.float(), int(speaker), first)
