"""Puts stored messages in order from a live copy that may lose some and from reads that fill the gaps. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class Reassembly(Generic[T]):
    """Hands out each message after `after` once, ascending by sequence, none left out.

    The live copy may repeat messages, and lose any of them: a loss is either seen (the message before it on its
    subject, `previous`, was never handed out) or told by `lost()`. While something is missing, live messages only say
    that there is more, and the caller reads: `begin()` before it asks, `page()` or `failed()` with the answer.
    At most `limit` messages of the live copy are kept; for more, a read brings them later.
    """

    def __init__(self, after: int, limit: int) -> None:
        self.position = after
        self.missing = True
        self._limit = limit
        self._ready: deque[T] = deque()
        self._reading = False
        self._lost_while_reading = False
        self._held: list[tuple[int, int, T]] = []

    def pop(self) -> T | None:
        """The next message, or None: wait for a live one, or read if `missing`."""
        return self._ready.popleft() if self._ready else None

    def live(self, seq: int, previous: int, message: T) -> None:
        """A live message; `previous` is the sequence of the one before it on its subject, 0 for the first."""
        if seq <= self.position:
            return
        if self._reading:
            if len(self._held) < self._limit:
                self._held.append((seq, previous, message))
            else:
                self._lost_while_reading = True
        elif self.missing or previous > self.position or len(self._ready) >= self._limit:
            self.missing = True
        else:
            self._hand_out(seq, message)

    def lost(self) -> None:
        """Live messages may have been lost up to now."""
        self.missing = True
        self._lost_while_reading = True

    def begin(self) -> int:
        """A read begins now: the sequence it must start from."""
        self._reading = True
        self._lost_while_reading = False
        self._held.clear()
        return self.position + 1

    def page(self, messages: Iterable[tuple[int, T]], last: bool) -> None:
        """What the read brought, ascending; `last` if nothing more was stored at that moment."""
        for seq, message in messages:
            self._hand_out(seq, message)
        self.missing = self._lost_while_reading or not last
        self._reading = False
        held, self._held = self._held, []
        for seq, previous, message in held:
            self.live(seq, previous, message)

    def failed(self) -> None:
        """The read brought nothing: read again."""
        self._reading = False
        self.missing = True

    def _hand_out(self, seq: int, message: T) -> None:
        self._ready.append(message)
        self.position = seq
