"""Sentences of a text that is still arriving."""

from __future__ import annotations

import re
from typing import Final

MAX_SENTENCE: Final = 400
"""Characters after which a text without an end of sentence is cut, at white space if there is any."""
_BLOCK: Final = 4096  # a text of megabytes is not copied at each sentence
_END: Final = re.compile(r"[.!?…]+[\"”’')\]]*\s+(?=\S)|\n\s*(?=\S)")
_TITLE: Final = re.compile(r"(?:^|\s)(?:[A-Z]|Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|etc|e\.g|i\.e)\.\s+$")


class Sentences:
    """Cuts a text that comes in pieces into sentences which add up to it. They do not depend on the pieces.

    White space belongs to the sentence before it. A sentence is known when the next one has begun.
    """

    def __init__(self) -> None:
        self._text = ""

    def push(self, piece: str) -> list[str]:
        """Sentences that are complete by now."""
        done = []
        for start in range(0, len(piece), _BLOCK):
            self._text += piece[start : start + _BLOCK]
            while cut := self._cut():
                done.append(self._text[:cut])
                self._text = self._text[cut:]
        return done

    def end(self) -> str:
        """What is left when no more comes; may be ""."""
        rest, self._text = self._text, ""
        return rest

    def _cut(self) -> int:
        """Where the next sentence begins; 0 as long as that can not be told."""
        text = self._text
        for match in _END.finditer(text, 0, MAX_SENTENCE + 1):
            if "\n" in match.group() or not (text[match.end()].islower() or _TITLE.search(text, 0, match.end())):
                return match.end()
        if len(text) <= MAX_SENTENCE:
            return 0
        return next((i for i in range(MAX_SENTENCE, 0, -1) if text[i - 1].isspace()), MAX_SENTENCE)
