"""What happened to a request, node by node and generation by generation, and when. From its stored facts alone."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from msgspec.structs import asdict

from broker.facts import Log
from broker.subjects import parse_run
from cornstalk.graph import State
from cornstalk.messages import FACTS, Edge, End, First, Graph, Node, Times, Try, decode

Key = tuple[str, int]
"""Node token and generation."""


class History:
    """The facts of one request, folded, each with the time at which it was stored (Unix seconds, the server's)."""

    def __init__(self, log: Log) -> None:
        self.state = State()
        self.facts = len(log.messages)
        self._recorded: dict[str, float] = {}
        self._ended: dict[Key, float] = {}
        self._died: dict[Key, float] = {}
        self._firsts: dict[Key, dict[str, float]] = defaultdict(dict)
        self._starts: dict[Key, int] = defaultdict(int)
        for stored in log.messages:
            fact = decode(FACTS[parse_run(stored.subject).kind], stored.data)
            self.state.add(fact, stored.seq)
            match fact:
                case Graph():
                    self._recorded |= {node.token: stored.time for node in fact.nodes}
                case End():
                    self._ended[fact.node, fact.gen] = stored.time
                    for key in _lost(fact):
                        self._died.setdefault(key, stored.time)
                case First():
                    self._firsts[fact.node, fact.gen][fact.output] = stored.time
                case Try():
                    self._starts[fact.node, fact.gen] += 1

    def nodes(self) -> list[dict[str, Any]]:
        """Every node that was not cut, in the order in which they were recorded."""
        return [self._node(node) for node in self.state.log_nodes()]

    def _node(self, node: Node) -> dict[str, Any]:
        gen = self.state.gen(node.token)
        about: dict[str, Any] = {
            "id": node.id,
            "node": node.token,
            "component": node.component,
            "line": node.line,
            "needs": sorted({edge.node for edge in self.state.edges.get(node.token, ())}),
            **self._generation(node, gen),
        }
        if gen:
            about["earlier"] = [self._generation(node, before) for before in range(gen)]
        return about

    def _generation(self, node: Node, gen: int) -> dict[str, Any]:
        """`restarts`: starts after the death of a worker. `times` holds what is known: see `_times`."""
        key = (node.token, gen)
        end = self.state.ends.get(key)
        about: dict[str, Any] = {
            "gen": gen,
            "restarts": self._starts[key],
            "outcome": end.outcome if end else "",
            "times": self._times(node, gen, end),
        }
        if end is not None:
            about |= {"worker": end.worker, "attempt": end.attempt, "usage": asdict(end.usage)}
            if chunks := {name: total for name, total in end.outputs.items() if node.outputs.get(name) == "stream"}:
                about["chunks"] = chunks
            if end.error is not None:
                about["error"] = end.error
            if end.vanished:
                about["vanished"] = [{"node": token, "gen": lost} for token, lost in end.vanished]
        return about

    def _times(self, node: Node, gen: int, end: End | None) -> dict[str, float]:
        """`recorded`: its pass was stored; `ready`: so was the last thing that it needs; `stored`: so was its end.

        The others are the worker's, 0 where it did not say: `published`, `claimed`, `started`, `first`, `ended`.
        """
        key = (node.token, gen)
        times = asdict(end.times if end else Times()) | {"recorded": self._recorded[node.token]}
        if not times["first"] and self._firsts[key]:
            times["first"] = min(self._firsts[key].values())
        if key in self._ended:
            times["stored"] = self._ended[key]
        if (ready := self._ready(node.token, gen)) is not None:
            times["ready"] = ready
        return times

    def _ready(self, token: str, gen: int) -> float | None:
        """When the generation could first run: its predecessor was lost, its inputs were there. None: not yet."""
        since = self._died[token, gen - 1] if gen else self._recorded[token]
        until = self._ended.get((token, gen), float("inf"))
        there = [self._there(edge, until) for edge in self.state.edges[token]]
        known = [at for at in there if at is not None]
        return max([since, *known]) if len(known) == len(there) else None

    def _there(self, edge: Edge, until: float) -> float | None:
        """When what an edge carries was last made, before `until`."""
        made = []
        for gen in range(self.state.gen(edge.node) + 1):
            end = self.state.ends.get((edge.node, gen))
            if edge.stream and edge.output in self._firsts[edge.node, gen]:
                made.append(self._firsts[edge.node, gen][edge.output])
            elif end is not None and end.outcome == "done":
                made.append(self._ended[edge.node, gen])
        return max((at for at in made if at <= until), default=None)


def _lost(end: End) -> list[Key]:
    """The generations that an End declares dead."""
    return [(end.node, end.gen), *end.vanished] if end.outcome == "lost" else []
