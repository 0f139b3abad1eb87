"""Who takes the next step: one call at a time, once nothing else moves. So the order of completions is the test's."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection
from typing import Final, Literal

Order = Literal["first", "last", "shuffled"]
"""Which of the calls under way takes the next step: the oldest, the newest, or any."""

_SETTLE: Final = 10
"""Rounds of the event loop in which a step shows all its effects: a pass, the calls it sends, their start."""


class Turns:
    """Gives turns in the order that was asked for. Calls in `held` get one only when no other call wants one."""

    def __init__(self, order: Order, seed: int, held: Collection[str] = ()) -> None:
        self._order, self._random, self._held = order, random.Random(seed), frozenset(held)
        self._ranks: dict[str, int] = {}
        self._waiting: dict[asyncio.Future[None], str] = {}
        self._giving: asyncio.Task[None] | None = None

    def enter(self, call: str) -> None:
        """Calls are as old as they came here."""
        self._ranks.setdefault(call, len(self._ranks))

    async def turn(self, call: str) -> None:
        """Until it is this call's turn."""
        mine = asyncio.get_running_loop().create_future()
        self._waiting[mine] = call
        if self._giving is None or self._giving.done():
            self._giving = asyncio.create_task(self._give())
        try:
            await mine
        finally:
            self._waiting.pop(mine, None)

    def stop(self) -> None:
        """No more turns."""
        if self._giving is not None:
            self._giving.cancel()

    async def _give(self) -> None:
        while self._waiting:
            for _ in range(_SETTLE):
                await asyncio.sleep(0)
            waiting = [(self._ranks[call], turn) for turn, call in self._waiting.items() if not turn.done()]
            free = [(self._ranks[c], t) for t, c in self._waiting.items() if not t.done() and c not in self._held]
            if waiting:
                self._pick(free or waiting).set_result(None)

    def _pick(self, waiting: list[tuple[int, asyncio.Future[None]]]) -> asyncio.Future[None]:
        waiting.sort(key=lambda pair: pair[0])
        match self._order:
            case "first":
                return waiting[0][1]
            case "last":
                return waiting[-1][1]
            case "shuffled":
                return self._random.choice(waiting)[1]
