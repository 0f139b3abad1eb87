"""What a vocoder asks of the model of its family: the sound of codes, whole or in parts."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class Window(Protocol):
    """One part of the sound, and what it is made of."""

    @property
    def samples(self) -> int: ...


@dataclass(frozen=True)
class Part:
    """One window of one request, or all of it at once."""

    window: Any  # None: all
    codes: Sequence[Any]  # of the request so far, from its beginning: an int each, or a list of one of each codebook
    voice: Any


class SoundModel(Protocol):
    """Float32, from its own weights only. One thread at a time."""

    frame: tuple[int, ...]
    """Shape of the codes of one moment."""
    codes: int
    """Of each codebook."""
    longest: float
    """Moments that are made whole."""

    def voice(self, speaker: str, seed: int) -> Any:
        """What the parts of one request have in common. Raises EngineError bad_input."""

    def window(self, index: int, told: int, ended: bool) -> Window | None:
        """The `index`-th part, once `told` codes are known; None if it needs more, or (`ended`) there is none."""

    def whole(self, part: Part) -> Any:
        """The sound of all codes at once: float32 [samples], bit for bit what transformers makes of them."""

    def shape(self, part: Part) -> Hashable:
        """Parts of equal shapes are made in one step."""

    def sounds(self, parts: Sequence[Part]) -> Any:
        """Parts of one shape in one step: float32 [parts, samples]."""
