"""What becomes of generated text on its way out: cut at a stop string, without what earlier attempts already stored."""

from __future__ import annotations

from collections.abc import Sequence

from cornstalk.errors import LineageDiverged


class Stops:
    """Cuts a text that comes in pieces before its first stop string. The result does not depend on the pieces.

    The first is the one that ends first; of two that end together, the longer. Text that may be the beginning of a stop
    string is held back, so what was returned is never taken back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.hit = False

    def push(self, piece: str) -> str:
        """What is certain by now. After `hit` there is nothing more."""
        if self.hit:
            return ""
        text = self._held + piece
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.hit, self._held = True, ""
            return text[: min(found)[1]]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def end(self) -> str:
        """What was held back, now that no more comes."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` with which `stop` begins."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)


class Unsaid:
    """Lets through only what comes after `prior`, the text that earlier attempts stored."""

    def __init__(self, prior: str) -> None:
        self._prior = prior

    def push(self, piece: str) -> str:
        """The new part of a piece. Raises LineageDiverged."""
        n = min(len(piece), len(self._prior))
        if piece[:n] != self._prior[:n]:
            raise LineageDiverged(f"the stored text goes on with {len(self._prior)} other characters")
        self._prior = self._prior[n:]
        return piece[n:]

    def end(self) -> None:
        """Raises LineageDiverged when the text ended before the stored one."""
        if self._prior:
            raise LineageDiverged(f"the text ended {len(self._prior)} characters before the stored one")
