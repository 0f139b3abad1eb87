"""The stored log of one request, as its driver reads and extends it. All writes are put-if-absent."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from broker.connection import Broker
from broker.crash import crash_at
from broker.errors import BrokerError, QueueFull
from broker.facts import Facts
from broker.lifetimes import FACT_GRACE, fact_ttl
from broker.subjects import finish as finish_subject
from broker.subjects import graph as graph_subject
from broker.work import publish_item
from cornstalk.errors import RecordError
from cornstalk.graph import State, decide
from cornstalk.messages import INPUT, Accepted, End, Error, Finish, Graph, Node, WorkItem, decode, encode
from cornstalk.record import Pass, Result
from cornstalk.release import RELEASE, check_release
from cornstalk.task import UnitTask
from cornstalk.types import Port
from gateway.follow import Following
from gateway.graphs import graphs
from gateway.values import Values

log = logging.getLogger(__name__)

FINISH_GRACE: Final = 5.0
"""Seconds past the deadline in which a Finish may still be stored; the dispatcher stores `expired` meanwhile."""

HEAD_START: Final = 1.0
"""Seconds that sending the items of a pass may take: an end of the request is heard then, whatever its queues do."""


class Journal:
    """Passes, results and the Finish of one request. What is stored is the truth; the rest can be made again from it.

    Composite calls that are driven side by side share it: their passes are stored one after the other.
    """

    def __init__(
        self,
        broker: Broker,
        facts: Facts,
        following: Following,
        accepted: Accepted,
        tasks: dict[str, UnitTask],
        live: Mapping[str, Port],
    ) -> None:
        """`tasks`: component id -> task, of everything the app may call. `live`: fields that the client streams in."""
        self._broker, self._facts, self._following, self._tasks = broker, facts, following, tasks
        self._live = live
        self.accepted = accepted
        self.state: State = following.state
        self.values = Values(broker, accepted.request, accepted.deadline)
        self._storing = asyncio.Lock()
        self._results: dict[str, tuple[End, Result]] = {}

    def nodes(self, path: str) -> list[Node]:
        """The log of one composite call and of what it calls, without cut nodes. Raises OtherRelease."""
        check_release(self.state.graphs.values())
        return [n for n in self.state.log_nodes() if n.id.startswith(path)]

    def cuts(self, path: str) -> int:
        """How many of its nodes were cut."""
        return sum(self.state.nodes[t].id.startswith(path) for t in self.state.cuts if t in self.state.nodes)

    def known(self) -> dict[str, End]:
        """The End of each node that has ended, well or not."""
        return {token: end for token, (_, end) in self.state.results().items()}

    def first_pieces(self) -> set[tuple[str, str]]:
        """(node, output) of each stream that has begun."""
        return {(token, output) for token, gen, output in self.state.firsts}

    def port(self, token: str, output: str) -> Port:
        """What an output of a node is declared as."""
        return self._live[output] if token == INPUT else self._tasks[self.state.nodes[token].component].outputs[output]

    async def results(self) -> dict[str, Result]:
        """What is known of each node, with the values of finished streams read from the log."""
        await self._following.gap_free()
        return {token: await self._result(token, seq, end) for token, (seq, end) in self.state.results().items()}

    async def changed(self) -> None:
        """Returns when something was stored since the caller last looked at `state` without waiting in between."""
        await self._following.changed()

    async def store(self, run: Pass, closed: bool) -> bool:
        """Stores a pass, then sends its items. False if another driver's pass was there: it is adopted instead."""
        await self.values.store(run.large)
        crash_at("driver.spooled")
        async with self._storing:
            for graph in graphs(len(self.state.graphs), run.new_nodes, run.cuts, closed):
                if not await self._store_graph(graph):
                    return False
        return True

    async def close(self, streams: dict[str, tuple[str, str]]) -> None:
        """Stores that serve has returned, and the outputs that the stream fields of its response come from.

        What is stored is told to clients. Raises RecordError if it is something else, from a run before a crash.
        """
        async with self._storing:
            while not self.state.closed:
                await self._store_graph(Graph(index=len(self.state.graphs), closed=True, streams=streams))
        if self.state.streams != streams:
            raise RecordError(
                "serve answered with other streams than it did before its gateway died: it depends on something that "
                "changes (a race, a clock), and clients have been told of the first ones"
            )

    async def finish(self, finish: Finish) -> None:
        """Puts the Finish if absent; the stored one is the answer, also to its loser."""
        times = {"accepted": self.accepted.accepted_at, "finished": time.time()}
        put = await self._facts.put(
            finish_subject(self.accepted.request),
            encode(Finish(status=finish.status, response=finish.response, error=finish.error, times=times)),
            deadline=max(self.accepted.deadline, time.time()) + FINISH_GRACE,
            ttl=FACT_GRACE,
        )
        crash_at("driver.finished")
        self._following.add(decode(Finish, put.data), put.seq)

    async def _result(self, token: str, seq: int, end: End) -> Result:
        made = self._results.get(token)
        if made is None or made[0] is not end:
            result = Result(seq=seq, outputs=await self._outputs(token, end), error=_failure(end))
            made = self._results[token] = (end, result)
        return made[1]

    async def _outputs(self, token: str, end: End) -> dict[str, Any] | None:
        if end.outcome != "done":
            return None
        node = self.state.nodes[token]
        return {
            name: await self.values.stream(end, name, self.port(token, name).empty)
            if kind == "stream"
            else await self.values.loaded(end.outputs.get(name))
            for name, kind in node.outputs.items()
            if not self.port(token, name).tensors  # `invoke` never looks into it
        }

    async def _store_graph(self, graph: Graph) -> bool:
        put = await self._facts.put(
            graph_subject(self.accepted.request, graph.index),
            encode(msgspec.structs.replace(graph, release=RELEASE)),
            deadline=self.accepted.deadline,
            unless=finish_subject(self.accepted.request),
            ttl=fact_ttl(self.accepted.deadline),
        )
        crash_at("driver.stored")
        self._following.add(graph if put.won else decode(Graph, put.data), put.seq)
        if put.won:
            await self._send([d for d in decide(self.state, graph) if isinstance(d, WorkItem)])
        crash_at("driver.sent")
        return put.won

    async def _send(self, items: Sequence[WorkItem]) -> None:
        """A head start: the dispatcher publishes the same items with the same Msg-Ids, and keeps at it."""
        sending = (publish_item(self._broker, item, within=HEAD_START) for item in items)
        results = await asyncio.gather(*sending, return_exceptions=True)
        for error in results:
            if isinstance(error, (QueueFull, BrokerError)):
                log.info("left to the dispatcher: %s", type(error).__name__)
            elif isinstance(error, BaseException):
                raise error


def _failure(end: End) -> Error | None:
    if end.outcome == "done":
        return None
    return end.error or Error(code=end.outcome, message=f"the node ended {end.outcome}", node=end.node)
