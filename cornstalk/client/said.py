"""What a client has said of one open field. Pure."""

from __future__ import annotations

from typing import Any, Final

MOST: Final = 1 << 20
"""Characters, bytes or members of one frame: a piece may be cut, for pieces add up."""


class Said:
    """Kept until the request has ended: whatever a gateway has not stored yet dies with it."""

    def __init__(self) -> None:
        self._pieces: list[Any] = []
        self._next, self._offset = 0, 0  # the piece, and where in it, that goes out next on this connection
        self._end_sent = self._closed = False
        self.ended = False
        """Nothing follows."""

    def add(self, piece: Any) -> None:
        """The next piece: str, bytes or list."""
        if piece:
            self._pieces.append(piece)

    def go_on(self, size: int, ended: bool) -> None:
        """On a new connection, whose gateway has the first `size` characters, bytes or members; if `ended`, it takes no
        more.
        """
        self._next, self._offset, self._end_sent, self._closed = 0, size, False, ended
        while self._next < len(self._pieces) and self._offset >= len(self._pieces[self._next]):
            self._offset -= len(self._pieces[self._next])
            self._next += 1

    @property
    def all_sent(self) -> bool:
        """On this connection."""
        return self._closed or (self._next >= len(self._pieces) and (self._end_sent or not self.ended))

    def take(self) -> Any:
        """What to send now: a piece, or None for the end. Only unless `all_sent`."""
        if self._next >= len(self._pieces):
            self._end_sent = True
            return None
        whole = self._pieces[self._next]
        piece = whole[self._offset : self._offset + MOST]
        self._offset += len(piece)
        if self._offset >= len(whole):
            self._next, self._offset = self._next + 1, 0
        return piece
