"""One composite task driven to its value: passes over its own part of the log (notes/record.md section 2)."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from broker.crash import crash_at
from cornstalk.record import Outcome, Pass
from cornstalk.response import Head, begins, same_response, stream_fields
from cornstalk.task import CompositeTask
from gateway.journal import Journal
from gateway.metrics import count_cuts, counted
from gateway.watchdog import Watchdog

log = logging.getLogger(__name__)


class Ended(Exception):
    """Raised where a request is driven whose Finish is stored already, by whomever."""


class Part:
    """Runs the passes of one composite task until one is complete. Holds nothing that is not stored or made again."""

    def __init__(self, journal: Journal, task: CompositeTask, request: Any, app: str, path: str = "") -> None:
        """`path`: what the ids of its nodes begin with; "" for the task of an app."""
        self._journal, self._task, self._request, self._app, self._path = journal, task, request, app, path
        self._watchdog = Watchdog.shared()
        self.head: asyncio.Future[Head] = asyncio.get_running_loop().create_future()

    async def run(self) -> Head:
        """The response of the complete pass, which agrees with what was begun.

        Raises Ended, what user code raises, and what the broker raises.
        """
        while (whole := await self._step()) is None:
            pass
        return whole

    async def _step(self) -> Head | None:
        """One pass, and the wait for what it needs."""
        self._check()
        crash_at("driver.pass")
        results = await self._journal.results()
        crash_at("driver.known")
        accepted = self._journal.accepted
        run = Pass(
            self._journal.nodes(self._path),
            results,
            request_id=accepted.request,
            seed=accepted.seed,
            accepted_at=accepted.accepted_at,
            cuts=self._journal.cuts(self._path),
            path=self._path,
        )
        with self._watchdog.watch(accepted.app, accepted.app_version), counted(accepted.app, run):
            outcome = run.run(self._task, self._request)
        if outcome.error is not None:
            raise outcome.error
        for call in run.unseen:
            log.warning("app %s looks at a result in a way that cannot be seen: %s was cut; wait(x)", self._app, call)
        if not await self._stored(run, outcome):
            return None
        count_cuts(accepted.app, run)
        if run.complete:
            return self._whole(outcome.value, run)
        await self._wait(run, outcome)
        return None

    def _check(self) -> None:
        if self._journal.state.finish is not None:
            raise Ended

    async def _stored(self, run: Pass, outcome: Outcome) -> bool:
        """Whether what this pass adds, if anything, is stored: also that no further pass is expected (decision 002)."""
        closes = outcome.kind == "done" and not self._path and not self._journal.state.closed
        if not (run.new_nodes or run.cuts or closes):
            return True
        return await self._journal.store(run, closed=closes)

    async def _wait(self, run: Pass, outcome: Outcome) -> None:
        """Until a group of nodes is known, or a call failed that was thought to go well.

        Meanwhile the response of a pass that came to its end begins, once only streams are pending in it.
        """
        before = set(run.results)
        while True:
            self._check()
            known = self._journal.known()
            well = {token for token, end in known.items() if end.outcome == "done"}
            failed = (known.keys() - before - well) & self._tokens(run)
            if failed or any(before.issuperset(g) or well.issuperset(g) for g in outcome.groups):
                return
            if self._may_begin(run, outcome, well):
                self.head.set_result(Head(outcome.value, stream_fields(outcome.value, run)))
            await self._journal.changed()
            crash_at("driver.woken")

    def _may_begin(self, run: Pass, outcome: Outcome, well: set[str]) -> bool:
        if outcome.kind != "done" or self.head.done():
            return False
        return begins(outcome.value, run, well, self._journal.first_pieces())

    @staticmethod
    def _tokens(run: Pass) -> set[str]:
        return {node.token for node in run.nodes} | run.given

    def _whole(self, value: Any, run: Pass) -> Head:
        whole = Head(value, stream_fields(value, run))
        if self.head.done() and not self.head.cancelled():
            same_response(self.head.result().response, value, run)
        else:
            self.head.set_result(whole)
        crash_at("driver.answered")
        return whole
