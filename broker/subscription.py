"""A core subscription: at most once, told of losses, closed without leaving anything behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import nats.errors

DRAIN_TIMEOUT: Final = 2.0


class Subscription:
    """Made by `Broker.subscribe_core`. `close` and `drain` are idempotent.

    `on_lost` is called when messages were dropped for a slow callback, and when the connection broke. Who is called
    usually has this: closed, it has nobody, and who is not needed any more need not wait for the cycle collector.
    """

    def __init__(self, nc: Any, sub: Any, among: dict[Any, Subscription], on_lost: Callable[[], None] | None) -> None:
        self._nc = nc
        self._sub = sub
        self._among = among
        self._on_lost = on_lost
        among[sub] = self

    def lost(self) -> None:
        if self._on_lost is not None:
            self._on_lost()

    async def close(self) -> None:
        """No message is handled from here on."""
        if (sub := self._end()) is not None:
            try:
                await sub.unsubscribe()
            except nats.errors.Error:
                pass  # closed with its connection

    async def drain(self) -> None:
        """Like close, but returns when all that the server had sent before is handled; after 2 s in any case."""
        if not self._nc.is_connected:
            await self.close()
        elif (sub := self._end()) is not None:
            try:
                await asyncio.wait_for(sub.drain(), DRAIN_TIMEOUT)
            except (nats.errors.Error, TimeoutError):
                pass  # its messages were lost with the connection

    def _end(self) -> Any:
        """What is to be closed, once."""
        sub, self._sub, self._on_lost = self._sub, None, None
        self._among.pop(sub, None)
        return sub
