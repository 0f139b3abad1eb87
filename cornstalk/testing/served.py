"""An app's `serve` as it is served: its composites recorded, run and replayed side by side, in one process."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from typing import Any

from cornstalk.app import App
from cornstalk.errors import RecordError
from cornstalk.messages import Graph
from cornstalk.response import replaced
from cornstalk.session import Serving
from cornstalk.task import CompositeTask
from cornstalk.testing.driver import Driver
from cornstalk.testing.executor import Executor
from cornstalk.testing.store import Crashed, Store


class Answering(Serving):
    """One run of `serve` in a test, and the answer that a client gets."""

    def __init__(self, app: App, request: Any, store: Store) -> None:
        super().__init__(app)
        self._request, self._store = request, store

    async def answer(self) -> Any:
        """The response with every stream whole. Raises what ends the request; Crashed, after the store's crash.

        What `serve` catches makes no difference: neither to a crash nor to an AssertionError of an engine.
        """
        serve, over = asyncio.create_task(self._answer()), asyncio.create_task(self._store.over())
        try:
            await asyncio.wait((serve, over), return_when=asyncio.FIRST_COMPLETED)
            self._store.check()
            return await serve
        finally:
            serve.cancel()
            over.cancel()
            await asyncio.gather(serve, over, return_exceptions=True)

    async def _answer(self) -> Any:
        try:
            head = await self.run(copy.deepcopy(self._request))
            self.close_graph(head.streams)
            await self.ended()
            streams = {path: await self.whole(*source) for path, source in head.streams.items()}
            return replaced(head.response, streams)
        finally:
            await self.close()

    def close_graph(self, streams: dict[str, tuple[str, str]]) -> None:
        """Stores that serve has returned, and where the stream fields of its response come from."""


class Served(Answering):
    """Stands for the gateway: composite calls over one store, streams read from it."""

    def __init__(self, app: App, request: Any, executor: Executor, store: Store, strict: bool = False) -> None:
        super().__init__(app, request, store)
        self._executor, self._strict = executor, strict
        self._drivers: list[Driver] = []

    @property
    def passes(self) -> int:
        return sum(driver.passes for driver in self._drivers)

    def close_graph(self, streams: dict[str, tuple[str, str]]) -> None:
        if not self._store.closed:
            self._store.put_graph(Graph(index=len(self._store.graphs), closed=True, streams=streams), {})
        if self._store.streams() != streams:
            raise RecordError("serve answered with other streams than it did before the crash")

    def part(self, task: CompositeTask, request: Any, path: str) -> _Part:
        driver = Driver(task, request, self._executor, self._store, self._strict, path)
        self._drivers.append(driver)
        return _Part(driver)

    def call_id(self, node: str) -> str:
        return self._executor.ids[node]

    async def pieces(self, node: str, output: str) -> AsyncIterator[Any]:
        at, store = 0, self._store
        while True:
            changed, have = store.changed, store.pieces.get((node, output), [])
            while at < len(have):
                yield have[at]
                at += 1
            if node in store.ends:
                break
            await self.until(node, changed.wait())
        await self._well(node)

    async def whole(self, node: str, output: str) -> Any:
        while node not in self._store.ends:
            await self.until(node, self._store.changed.wait())
        await self._well(node)
        return (self._store.results()[node].outputs or {})[output]

    async def _well(self, node: str) -> None:
        if self._store.failed((node,)):
            await self.failed(node)


class _Part:
    """A composite call. A crash cancels it: no code of the app is to catch it."""

    def __init__(self, driver: Driver) -> None:
        self._driver, self.head = driver, driver.head

    async def run(self) -> None:
        try:
            await self._driver.answer()
        except Crashed as crash:
            raise asyncio.CancelledError from crash
