"""Server-sent events from bytes. Pure: any split of the bytes gives the same events."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_END_OF_LINE: Final = re.compile(r"\r\n|\n|\r(?!\n|\Z)")


@dataclass(frozen=True, slots=True)
class SentEvent:
    """One event. `id` is the id of this event, "" when it carries none."""

    kind: str
    id: str
    data: str


class Parser:
    """Feed it bytes as they come. An event that the stream's end cut off is never given out."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""
        self._begun = False
        self._kind, self._id = "", ""
        self._data: list[str] = []

    def feed(self, data: bytes) -> Iterator[SentEvent]:
        """The events that these bytes complete."""
        text = self._decoder.decode(data)
        if text and not self._begun:
            self._begun, text = True, text.removeprefix("\ufeff")
        self._text += text
        for line in self._lines():
            if line:
                self._take(line)
            elif event := self._dispatch():
                yield event

    def _lines(self) -> Iterator[str]:
        """Whole lines, ended by LF, CRLF or CR. A CR that is last so far may yet be half of a CRLF: it waits."""
        start = 0
        for end in _END_OF_LINE.finditer(self._text):
            yield self._text[start : end.start()]
            start = end.end()
        self._text = self._text[start:]

    def _take(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "event":
                self._kind = value
            case "data":
                self._data.append(value)
            case "id" if "\0" not in value:
                self._id = value

    def _dispatch(self) -> SentEvent | None:
        event = SentEvent(self._kind or "message", self._id, "\n".join(self._data)) if self._data else None
        self._kind, self._id, self._data = "", "", []
        return event
