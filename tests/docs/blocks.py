"""The code blocks of a page, each with what it prints."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from tests.stack import ROOT

DOCS: Final = ROOT / "docs"
_FENCED: Final = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """Words behind the language: a file name = it is put there; "models" = it needs the real ones."""

    page: str
    line: int
    language: str
    words: tuple[str, ...]
    code: str
    prints: str | None = None

    @property
    def file(self) -> str:
        return next((word for word in self.words if "." in word), "")

    @property
    def models(self) -> bool:
        return "models" in self.words

    def __str__(self) -> str:
        return f"docs/{self.page}.md:{self.line}"


def blocks(page: str) -> list[Block]:
    """A `text` block is what the block before it prints."""
    text = (DOCS / f"{page}.md").read_text()
    found: list[Block] = []
    for match in _FENCED.finditer(text):
        language, *words = match[1].split()
        if language == "text":
            found[-1] = replace(found[-1], prints=match[2])
        else:
            found.append(Block(page, text[: match.start()].count("\n") + 1, language, tuple(words), match[2]))
    return found


def agrees(expected: str, printed: str) -> bool:
    """Whether it is what was printed: … stands for anything, blanks and ends of lines for each other."""
    first, *rest = (_words(part) for part in expected.split("…"))
    printed = _words(printed)
    if not rest:
        return printed == first
    *middle, last = rest
    if not printed.startswith(first) or not printed.endswith(last):
        return False
    at = len(first)
    for part in middle:
        if (found := printed.find(part, at)) < 0:
            return False
        at = found + len(part)
    return at <= len(printed) - len(last)


def _words(text: str) -> str:
    return " ".join(text.split())
