"""The unbroken run of deliveries that this process has seen of a consumer it may share with others."""

from __future__ import annotations

from typing import Final

from broker.pull import Delivery

MAX_AHEAD: Final = 1024
"""Deliveries that may be here before an earlier one, until the run counts as broken."""


class Run:
    """Every fact stored from `start` on, and delivered for the first time so far, has been seen here.

    True because a consumer numbers its deliveries and delivers new facts in their order: no number missing since the
    one that brought fact `start`, no fact missing. None while there is no such fact. Deliveries may come out of order.
    """

    def __init__(self) -> None:
        self.start: int | None = None
        self.newest = 0  # highest RUNS sequence delivered here for the first time
        self._next = 0  # every number of the run below this one is here
        self._ahead: set[int] = set()  # numbers above it that are here

    def follow(self, delivery: Delivery) -> None:
        """Counts a delivery."""
        number = delivery.consumer_seq
        if number < self._next or len(self._ahead) >= MAX_AHEAD:
            self.start = None  # a number twice: the consumer was made anew and counts from 1 again
        if self.start is None:
            self._next = number
            self._ahead.clear()
        self._ahead.add(number)
        while self._next in self._ahead:
            self._ahead.remove(self._next)
            self._next += 1
        if delivery.delivered == 1:
            self.newest = max(self.newest, delivery.stream_seq)
            if self.start is None:
                self.start = delivery.stream_seq

    def has_holes(self, delivery: Delivery) -> bool:
        """Whether a delivery numbered below this one is not here."""
        return delivery.consumer_seq >= self._next

    def give_up_holes(self, delivery: Delivery) -> None:
        """What is missing below this delivery went to another process: the run begins anew."""
        if self.has_holes(delivery):
            self.start = None
            self._next = max(self._ahead, default=self._next - 1) + 1
            self._ahead.clear()
