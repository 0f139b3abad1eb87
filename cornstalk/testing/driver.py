"""Stands for the gateway's driver: passes to a result over a store, and responses that begin early."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from cornstalk.messages import Graph
from cornstalk.record import Outcome, Pass
from cornstalk.response import Head, begins, same_response, stream_fields
from cornstalk.task import CompositeTask
from cornstalk.testing.executor import Executor
from cornstalk.testing.store import REQUEST, Store

ACCEPTED_AT: Final = 1767225600.0
"""2026-01-01 00:00 UTC: `now()` in a test."""

STALL: Final = 10.0
"""Seconds without a step, twice: an engine waits for what never comes."""


def new_pass(store: Store, strict: bool = False, path: str = "") -> Pass:
    """The next pass over what is stored of one composite call."""
    log, cuts = store.log(path)
    results = store.results()
    return Pass(log, results, request_id=REQUEST, accepted_at=ACCEPTED_AT, cuts=cuts, path=path, strict=strict)


class Driver:
    """Drives one composite task to its end: that of an app, or one that `serve` awaits.

    All state that matters is in the store: another driver may go on at any time.
    """

    def __init__(
        self, task: CompositeTask, request: Any, executor: Executor, store: Store, strict: bool = False, path: str = ""
    ) -> None:
        """`path`: what the ids of its nodes begin with; "" for the task of an app."""
        self.task, self.request, self.executor, self.store, self.strict = task, request, executor, store, strict
        self.path = path
        self.passes = self.visits = 0
        self.head: asyncio.Future[Head] = asyncio.get_running_loop().create_future()

    async def answer(self) -> Any:
        """The response. Raises what ends the request; Crashed, after the store's crash."""
        try:
            return await self._run()
        finally:
            if not self.head.done():
                self.head.cancel()

    async def _run(self) -> Any:
        log, _ = self.store.log(self.path)
        self.executor.send(self.store, log)  # work of a dead driver: sending it twice is harmless
        while True:
            run = new_pass(self.store, self.strict, self.path)
            outcome = run.run(self.task, self.request)
            self.passes += 1
            self.visits += len(run.visited)
            if outcome.error is not None:
                self._cancel_rest()
                raise outcome.error
            closes = outcome.kind == "done" and not self.path and not self.store.closed
            if run.new_nodes or run.cuts or closes:
                graph = Graph(index=len(self.store.graphs), nodes=run.new_nodes, cuts=run.cuts, closed=closes)
                self.store.put_graph(graph, run.large)
            self.executor.cancel(list(run.cuts))
            self.executor.send(self.store, list(run.new_nodes))
            if run.complete:
                return self._answer(outcome.value, run)
            await self._wait(outcome, run)

    def _cancel_rest(self) -> None:
        """What is under way of a request that has ended; `serve` may go on after a failure."""
        if not self.path:
            log, _ = self.store.log()
            self.executor.cancel([n.token for n in log if n.token not in self.store.ends])

    def _answer(self, value: Any, run: Pass) -> Any:
        if self.head.done():
            same_response(self.head.result().response, value, run)
        else:
            self.head.set_result(Head(value, stream_fields(value, run)))
        return value

    async def _wait(self, outcome: Outcome, run: Pass) -> None:
        """Until all of one group are known, or any call failed that was thought to go well."""
        store = self.store
        hoped = ({node.token for node in run.nodes} | run.given) - run.results.keys()
        while not store.failed(hoped):
            if any(all(token in store.ends for token in group) for group in outcome.groups):
                return
            firsts = {output for output, pieces in store.pieces.items() if pieces}
            if outcome.kind == "done" and not self.head.done() and begins(outcome.value, run, store.ends, firsts):
                self.head.set_result(Head(outcome.value, stream_fields(outcome.value, run)))
            await self._change()

    async def _change(self) -> None:
        """Until something is stored. Raises AssertionError if nothing is, for a long time."""
        for _ in range(2):  # a debugger may have held the loop during the first
            try:
                async with asyncio.timeout(STALL):
                    return await self.store.change()
            except TimeoutError:
                continue
        under_way = ", ".join(self.executor.under_way) or "none"
        self.store.mistake(AssertionError(f"no call ends any more; under way: {under_way}"))
        self.store.check()
