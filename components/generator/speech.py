"""A speech that a talker draws: rows of a thinker in, frames of codes out, both while they arrive."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from components.continuous import ContinuousBatch, Member
from cornstalk.errors import EngineError

Frame = tuple[int, ...]
"""The codes of one moment, one of each codebook."""


class Dice:
    """Draws of one request, by a generator of this request alone; at temperature 0 the likeliest."""

    def __init__(self, seed: int, temperature: float) -> None:
        import torch

        self._generator = torch.Generator().manual_seed(seed & (2**63 - 1)) if temperature else None

    def pick(self, scores: Any) -> int:
        """One of [codes] float32, as transformers' `generate` draws it."""
        import torch

        if self._generator is None:
            return int(scores.argmax())
        return int(torch.multinomial(scores.softmax(-1), 1, generator=self._generator))

    def skip(self, codes: int) -> None:
        """As one draw among so many codes leaves the generator."""
        import torch

        if self._generator is not None:
            torch.multinomial(torch.ones(codes), 1, generator=self._generator)


class Limits:
    """What transformers makes of logits before it draws. Raises EngineError bad_input."""

    def __init__(self, inputs: Mapping[str, Any], suppressed: Sequence[int], top_k: int, top_p: float) -> None:
        """`top_k` and `top_p` hold where the inputs say None."""
        from transformers.generation import logits_process as process

        temperature = float(inputs["temperature"])
        try:
            self._steps = [
                process.RepetitionPenaltyLogitsProcessor(float(inputs["repetition_penalty"])),
                process.SuppressTokensLogitsProcessor(list(suppressed)),
            ]
            if temperature != 0.0:
                self._steps += [
                    process.TemperatureLogitsWarper(temperature),
                    process.TopKLogitsWarper(top_k if inputs["top_k"] is None else inputs["top_k"]),
                    process.TopPLogitsWarper(top_p if inputs["top_p"] is None else float(inputs["top_p"])),
                ]
        except ValueError as error:
            raise EngineError(str(error), "bad_input") from error

    def __call__(self, logits: Any, before: Collection[int]) -> Any:
        """Scores [codes] float32 of logits [codes], where those `before` are less likely."""
        import torch

        history, scores = torch.tensor([sorted(set(before))], dtype=torch.long), logits.unsqueeze(0)
        for step in self._steps:
            scores = step(history, scores)
        return scores[0]


class Speech(Member[Frame]):
    """One sequence of up to `limit` frames, which begins with those it is `forced` to.

    Forced frames are drawn as well, and the draw thrown away: the draws after them are those of an undisturbed run.
    """

    def __init__(self, limit: int, dice: Dice, limits: Limits, check: Callable[[], None], forced: Sequence[Frame]):
        super().__init__(check)
        self.limit, self.dice, self.limits, self.forced = limit, dice, limits, list(forced)
        self.rows: list[Any] = []  # [size] each: of the tokens of the reply that no prompt holds
        self.whole = False  # no more rows come
        self.read = 0  # rows of the prompt in memory
        self.memory: Any = None

    @abstractmethod
    def hear(self, tensor: Any) -> None:
        """The next tensor of its thinker. Raises EngineError for what no thinker of this model gives."""


S = TypeVar("S", bound=Speech)


class Talking(ContinuousBatch[S, Frame]):
    """The batch of one family. A speech that waits for rows holds up nobody."""

    frame: tuple[int, ...]
    """Shape of a frame of codes as it is sent."""

    @abstractmethod
    def speech(self, inputs: Mapping[str, Any], seed: int, check: Callable[[], None], forced: Sequence[int]) -> S:
        """`inputs` of a Talker; `forced`: codes that are stored, frame by frame. Raises EngineError bad_input."""


def checked(rows: Any, size: int) -> Any:
    """Rows of hidden states as they are. Raises EngineError bad_rows for what no thinker of this model gives."""
    if not rows.is_floating_point() or rows.ndim != 2 or not len(rows) or rows.shape[1] != size:
        raise EngineError(
            f"rows are {rows.dtype} {list(rows.shape)}, not [n, {size}] of a thinker of this model", "bad_rows"
        )
    return rows


def too_long(rows: int, most: int) -> EngineError:
    return EngineError(f"the prompt has {rows} rows; the talker takes {most}", "prompt_too_long")
