"""The driver: runs the passes of one request until its Finish is stored (design section 1, notes/record.md section 2).

    pass -> store Graph -> publish what decide() names -> wait for what the pass needs -> next pass ... -> Finish

Any number of drivers may drive one request, one after the other or at once: each pass and the Finish are put-if-absent,
and who loses adopts the stored one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from opentelemetry import trace
from pydantic import BaseModel

from broker.connection import Broker
from broker.crash import crash_at
from broker.errors import BrokerError, QueueFull
from broker.facts import Facts
from broker.lifetimes import FACT_GRACE, fact_ttl
from broker.subjects import finish as finish_subject
from broker.subjects import graph as graph_subject
from broker.work import publish_item
from cornstalk.app import App
from cornstalk.blame import failure
from cornstalk.errors import CornstalkError
from cornstalk.graph import decide
from cornstalk.large import Spooled, without_large
from cornstalk.messages import Accepted, End, Error, Finish, Graph, WorkItem, decode, encode
from cornstalk.record import Outcome, Pass, Result
from cornstalk.response import begins, same_response, stored_response, stream_fields
from cornstalk.traces import where
from gateway.follow import Following
from gateway.graphs import graphs
from gateway.values import Values
from gateway.watchdog import Watchdog

log = logging.getLogger(__name__)
tracer = trace.get_tracer("cornstalk.driver")

FINISH_GRACE: Final = 5.0
"""Seconds past the deadline in which a Finish may still be stored; the dispatcher stores `expired` meanwhile."""


@dataclass(frozen=True)
class Head:
    """A response that has begun: its plain fields, and which output each of its stream fields comes from."""

    response: Any
    streams: dict[str, tuple[str, str]]  # field path -> (node token, output)


class Driver:
    """Drives one request. Everything it knows is stored; a crash at any line is mended by driving again."""

    def __init__(
        self, broker: Broker, facts: Facts, app: App, following: Following, accepted: Accepted, request: BaseModel
    ) -> None:
        """`request`: the accepted input as `invoke` takes it."""
        self._broker, self._facts, self._app = broker, facts, app
        self._following, self._accepted = following, accepted
        self._state = following.state
        self._request = request
        self._tasks = app.components()
        self._values = Values(broker, accepted.request, accepted.deadline)
        self._watchdog = Watchdog.shared()
        self.head: asyncio.Future[Head] = asyncio.get_running_loop().create_future()

    async def run(self) -> Finish:
        """The stored Finish, whoever wrote it."""
        try:
            while self._state.finish is None:
                crash_at("driver.pass")
                await self._step()
        except (CornstalkError, BrokerError, TypeError) as error:
            await self._finish(Finish(status="failed", error=_message(error)))
        except Exception as error:
            log.error("the driver of request %s stopped: %s", self._accepted.request, where(error))
            await self._finish(Finish(status="failed", error=_message(error)))
        finally:
            if not self.head.done():
                self.head.cancel()
        assert self._state.finish is not None
        return self._state.finish

    async def _step(self) -> None:
        """One pass, and the wait for what it needs."""
        results = await self._results()
        crash_at("driver.known")
        run = Pass(
            self._state.log_nodes(),
            results,
            request_id=self._accepted.request,
            seed=self._accepted.seed,
            accepted_at=self._accepted.accepted_at,
            cuts=len(self._state.cuts),
        )
        with self._watchdog.watch(self._app.name):
            outcome = run.run(self._app.task, self._request)
        over = outcome.kind == "done"
        if (run.new_nodes or run.cuts or (over and not self._state.closed)) and not await self._store(run, closed=over):
            return
        if outcome.error is not None:
            await self._finish(Finish(status="failed", error=_message(outcome.error)))
        elif run.complete:
            await self._answer(outcome.value, run)
        else:
            await self._wait(run, outcome)

    async def _results(self) -> dict[str, Result]:
        """What is known of each node, with the values of finished streams read from the log."""
        await self._following.gap_free()
        return {
            token: Result(seq=seq, outputs=await self._outputs(token, end), error=_failure(end))
            for token, (seq, end) in self._state.results().items()
        }

    async def _outputs(self, token: str, end: End) -> dict[str, Any] | None:
        if end.outcome != "done":
            return None
        node = self._state.nodes[token]
        ports = self._tasks[node.component].outputs
        return {
            name: await self._values.stream(end, name, ports[name].empty)
            if kind == "stream"
            else await self._values.loaded(end.outputs.get(name))
            for name, kind in node.outputs.items()
        }

    async def _store(self, run: Pass, closed: bool) -> bool:
        """Stores the pass, then sends its items. False if another driver's pass was there: it is adopted instead."""
        await self._values.store(run.large)
        crash_at("driver.spooled")
        for graph in graphs(len(self._state.graphs), run.new_nodes, run.cuts, closed):
            if not await self._store_graph(graph):
                return False
        return True

    async def _store_graph(self, graph: Graph) -> bool:
        put = await self._facts.put(
            graph_subject(self._accepted.request, graph.index),
            encode(graph),
            deadline=self._accepted.deadline,
            unless=finish_subject(self._accepted.request),
            ttl=fact_ttl(self._accepted.deadline),
        )
        crash_at("driver.stored")
        self._following.add(graph if put.won else decode(Graph, put.data), put.seq)
        if put.won:
            await self._send([d for d in decide(self._state, graph) if isinstance(d, WorkItem)])
        crash_at("driver.sent")
        return put.won

    async def _send(self, items: Sequence[WorkItem]) -> None:
        """A head start: the dispatcher publishes the same items with the same Msg-Ids, and keeps at it."""
        results = await asyncio.gather(*(publish_item(self._broker, item) for item in items), return_exceptions=True)
        for error in results:
            if isinstance(error, (QueueFull, BrokerError)):
                log.info("left to the dispatcher: %s", type(error).__name__)
            elif isinstance(error, BaseException):
                raise error

    async def _wait(self, run: Pass, outcome: Outcome) -> None:
        """Until a group of nodes is known, a call failed that was thought to go well, or the request has an end.

        Meanwhile the response of a pass that came to its end begins, once only streams are pending in it.
        """
        known = set(run.results)
        while self._state.finish is None:
            results = self._state.results()
            well = {token for token, (_, end) in results.items() if end.outcome == "done"}
            if results.keys() - known - well or any(known.issuperset(g) or well.issuperset(g) for g in outcome.groups):
                return
            if (
                outcome.kind == "done"
                and not self.head.done()
                and begins(outcome.value, run, well, self._first_pieces())
            ):
                self.head.set_result(Head(outcome.value, stream_fields(outcome.value, run)))
            await self._following.changed()
            crash_at("driver.woken")

    def _first_pieces(self) -> set[tuple[str, str]]:
        return {(token, output) for token, gen, output in self._state.firsts}

    async def _answer(self, value: Any, run: Pass) -> None:
        """Stores the response of the complete pass, after comparing it with what was begun."""
        streams = stream_fields(value, run)
        if self.head.done() and not self.head.cancelled():
            same_response(self.head.result().response, value, run)
        else:
            self.head.set_result(Head(value, streams))
        crash_at("driver.answered")
        gens = {token: self._state.gen(token) for token, _ in streams.values()}
        large: Spooled = {}
        response = without_large(stored_response(self._accepted.request, value, streams, gens), large)
        await self._values.store(large)
        await self._finish(Finish(status="done", response=response))

    async def _finish(self, finish: Finish) -> None:
        """Puts the Finish if absent; the stored one is the answer, also to its loser."""
        times = {"accepted": self._accepted.accepted_at, "finished": time.time()}
        put = await self._facts.put(
            finish_subject(self._accepted.request),
            encode(Finish(status=finish.status, response=finish.response, error=finish.error, times=times)),
            deadline=max(self._accepted.deadline, time.time()) + FINISH_GRACE,
            ttl=FACT_GRACE,
        )
        crash_at("driver.finished")
        self._following.add(decode(Finish, put.data), put.seq)


def _failure(end: End) -> Error | None:
    if end.outcome == "done":
        return None
    return end.error or Error(code=end.outcome, message=f"the node ended {end.outcome}", node=end.node)


def _message(error: Exception) -> Error:
    """What the client is told of an error of user code, a task or the system."""
    if isinstance(error, BrokerError):
        return Error(code="broker", message=str(error), retryable=True)
    return failure(error)
