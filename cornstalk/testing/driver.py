"""Stands for the gateway's driver: passes to a result over a store, and responses that begin early."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from cornstalk.messages import Graph
from cornstalk.record import Outcome, Pass
from cornstalk.response import begins, same_response, stream_fields
from cornstalk.task import CompositeTask
from cornstalk.testing.executor import Executor
from cornstalk.testing.store import REQUEST, Output, Store

ACCEPTED_AT: Final = 1767225600.0
"""2026-01-01 00:00 UTC: `now()` in a test."""

STALL: Final = 10.0
"""Seconds without a step, twice: an engine waits for what never comes."""


def new_pass(store: Store, strict: bool = False) -> Pass:
    """The next pass over what is stored."""
    log, cuts = store.log()
    return Pass(log, store.results(), request_id=REQUEST, accepted_at=ACCEPTED_AT, cuts=cuts, strict=strict)


class Head:
    """A response that has begun: plain fields, and where its stream fields come from."""

    def __init__(self, driver: Driver, value: Any, streams: dict[str, Output]) -> None:
        self.driver, self.value, self.streams = driver, value, streams

    def plain(self, name: str) -> Any:
        return getattr(self.value, name)

    async def pieces(self, path: str) -> AsyncIterator[Any]:
        """The pieces of a field, as they come; an error found later ends them as an error, never silently."""
        if path not in self.streams:
            yield self.plain(path)
            return
        at, store, output = 0, self.driver.store, self.streams[path]
        while True:
            changed, have = store.changed, store.pieces.get(output, [])
            while at < len(have):
                yield have[at]
                at += 1
            if output[0] in store.ends:
                break
            await changed.wait()
        await asyncio.shield(self.driver.final)

    async def whole(self, path: str) -> Any:
        total: Any = None
        async for piece in self.pieces(path):
            total = piece if total is None else total + piece
        return total


class Driver:
    """Drives one request to its end. All state that matters is in the store: another driver may go on at any time."""

    def __init__(
        self, task: CompositeTask, request: Any, executor: Executor, store: Store, strict: bool = False
    ) -> None:
        self.task, self.request, self.executor, self.store, self.strict = task, request, executor, store, strict
        self.passes = self.visits = 0
        loop = asyncio.get_running_loop()
        self.head: asyncio.Future[Head] = loop.create_future()
        self.final: asyncio.Future[Any] = loop.create_future()

    async def run(self) -> Any:
        """The response. Raises what ends the request; Crashed, after the store's crash."""
        try:
            result = await self._run()
        except Exception as error:
            for future in (self.head, self.final):
                if not future.done():
                    future.set_exception(error)
                    future.exception()
            raise
        self.final.set_result(result)
        return result

    async def _run(self) -> Any:
        log, _ = self.store.log()
        self.executor.send(self.store, log)  # work of a dead driver: sending it twice is harmless
        while True:
            run = new_pass(self.store, self.strict)
            outcome = run.run(self.task, self.request)
            self.passes += 1
            self.visits += len(run.visited)
            if outcome.error is not None:
                log, _ = self.store.log()
                self.executor.cancel([n.token for n in log if n.token not in self.store.ends])
                raise outcome.error
            over = outcome.kind == "done"
            if run.new_nodes or run.cuts or (over and not self.store.closed):
                graph = Graph(index=len(self.store.graphs), nodes=run.new_nodes, cuts=run.cuts, closed=over)
                self.store.put_graph(graph, run.large)
            self.executor.cancel(list(run.cuts))
            self.executor.send(self.store, list(run.new_nodes))
            if run.complete:
                return self._answer(outcome.value, run)
            await self._wait(outcome, run)

    def _answer(self, value: Any, run: Pass) -> Any:
        if self.head.done():
            same_response(self.head.result().value, value, run)
        else:
            self.head.set_result(Head(self, value, stream_fields(value, run)))
        return value

    async def _wait(self, outcome: Outcome, run: Pass) -> None:
        """Until all of one group are known, or any call failed that was thought to go well."""
        store = self.store
        while not store.failed_since(dict(run.results)):
            if any(all(token in store.ends for token in group) for group in outcome.groups):
                return
            firsts = {output for output, pieces in store.pieces.items() if pieces}
            if outcome.kind == "done" and not self.head.done() and begins(outcome.value, run, store.ends, firsts):
                self.head.set_result(Head(self, outcome.value, stream_fields(outcome.value, run)))
            await self._change()

    async def _change(self) -> None:
        """Until something is stored. Raises AssertionError if nothing is, for a long time."""
        for _ in range(2):  # a debugger may have held the loop during the first
            try:
                return await asyncio.wait_for(self.store.change(), STALL)
            except TimeoutError:
                continue
        raise AssertionError(f"no call ends any more; under way: {', '.join(self.executor.under_way) or 'none'}")
