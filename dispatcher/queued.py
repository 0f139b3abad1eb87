"""Items that nobody wants any more leave their queues: they count as no backlog, and no worker need skip them."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Collection
from typing import Final

from broker.connection import Broker
from broker.errors import BrokerError
from broker.subjects import work_stream

log = logging.getLogger(__name__)

REMEMBERED: Final = 50_000
"""Requests whose items are known."""


class Queued:
    """Where the items of running requests stand in their queues.

    Memory only, and only a hint: what an earlier dispatcher published is skipped by the worker that claims it.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._items: OrderedDict[str, dict[tuple[str, int], tuple[str, int]]] = OrderedDict()
        self._removing: set[asyncio.Task[None]] = set()

    def note(self, request: str, node: str, gen: int, component: str, seq: int) -> None:
        """An item is stored in the queue of `component` at `seq`, by whoever published it first."""
        self._items.setdefault(request, {})[node, gen] = component, seq
        if len(self._items) > REMEMBERED:
            self._items.popitem(last=False)

    def forget(self, request: str) -> None:
        """No more items will be published."""
        self._items.pop(request, None)

    def remove(self, request: str, nodes: Collection[str]) -> None:
        """Takes the items of these nodes out of their queues. Returns at once."""
        known = self._items.get(request, {})
        places = [known.pop(key) for key in list(known) if key[0] in nodes]
        if not known:
            self._items.pop(request, None)
        if places:
            task = asyncio.create_task(self._remove(places))
            self._removing.add(task)
            task.add_done_callback(self._removing.discard)

    async def close(self) -> None:
        for task in self._removing:
            task.cancel()
        await asyncio.gather(*self._removing, return_exceptions=True)

    async def _remove(self, places: list[tuple[str, int]]) -> None:
        for component, seq in places:
            try:
                await self._broker.api(f"STREAM.MSG.DELETE.{work_stream(component)}", {"seq": seq, "no_erase": True})
            except BrokerError as error:  # claimed and acked meanwhile, or NATS is away: then it is skipped
                log.debug("an item was not taken out of the queue of %s: %s", component, error)
