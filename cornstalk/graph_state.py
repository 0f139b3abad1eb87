"""One request's stored facts, folded. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from cornstalk.messages import (
    INPUT,
    Accepted,
    Cancel,
    Edge,
    End,
    Fact,
    Finish,
    First,
    Graph,
    Node,
    StreamRef,
    extensions,
)


class State:
    """What the stored facts of one request say.

    `add` commutes and is idempotent, for each fact is stored once (put-if-absent): order and duplicates do not matter.
    A generation of a node is dead when it ended `lost`, or when a consumer named its outputs as vanished; the current
    generation is the first that is not dead. Facts are only ever added, so what is done stays done until a report
    kills it, and the report is a fact that is handled too.
    """

    __slots__ = (
        "_results",
        "accepted",
        "cancel",
        "closed",
        "consumers",
        "cuts",
        "dead",
        "edges",
        "ends",
        "finish",
        "firsts",
        "graphs",
        "nodes",
        "seq",
        "seqs",
        "streams",
    )

    def __init__(self) -> None:
        self.accepted: Accepted | None = None
        self.graphs: dict[int, Graph] = {}
        self.closed = False  # no further pass will add a node
        self.streams: dict[str, tuple[str, str]] = {}  # where the stream fields of a serve's response come from
        self.nodes: dict[str, Node] = {}  # by token, cut ones included
        self.edges: dict[str, tuple[Edge, ...]] = {}  # inputs of a node
        self.consumers: dict[str, dict[str, None]] = {}  # producer -> its consumers, in order of their arrival
        self.cuts: set[str] = set()
        self.ends: dict[tuple[str, int], End] = {}
        self.seqs: dict[tuple[str, int], int] = {}  # RUNS sequence of each End
        self.firsts: set[tuple[str, int, str]] = set()  # (node, gen, output)
        self.dead: set[tuple[str, int]] = set()
        self.cancel: Cancel | None = None
        self.finish: Finish | None = None
        self.seq = 0  # highest RUNS sequence folded
        self._results: dict[str, tuple[int, End]] | None = None  # made when asked for, until an End or a cut comes

    def add(self, fact: Fact, seq: int = 0) -> None:
        """Fold one stored fact. `seq` is its sequence in RUNS."""
        self.seq = max(self.seq, seq)
        match fact:
            case End():
                self._add_end(fact, seq)
            case First():
                self.firsts.add((fact.node, fact.gen, fact.output))
            case Graph():
                self._add_graph(fact)
            case Accepted():
                self._add_accepted(fact)
            case Cancel():
                self.cancel = self.cancel or fact
            case Finish():
                self.finish = self.finish or fact

    def _add_accepted(self, accepted: Accepted) -> None:
        self.accepted = self.accepted or accepted
        live = [name for name, value in self.accepted.input.items() if isinstance(value, StreamRef)]
        if live:  # what the client streams in is made by no call, so no Graph holds it
            self._results = None
            self.nodes[INPUT] = Node(id=INPUT, token=INPUT, component="", outputs=dict.fromkeys(live, "stream"))
            self.edges[INPUT] = ()

    def _add_end(self, end: End, seq: int) -> None:
        key = (end.node, end.gen)
        self._results = None
        self.ends.setdefault(key, end)
        self.seqs[key] = max(seq, self.seqs.get(key, 0))
        if end.outcome == "lost":
            self.dead.add(key)
            self.dead.update(end.vanished)

    def _add_graph(self, graph: Graph) -> None:
        if graph.index in self.graphs:
            return
        self.graphs[graph.index] = graph
        self._results = None
        self.closed = self.closed or graph.closed
        self.streams.update(graph.streams)
        self.cuts.update(graph.cuts)
        for node in graph.nodes:
            self.nodes[node.token] = node
            self.edges[node.token] = tuple(e for e in extensions(node.inputs) if isinstance(e, Edge))
            for edge in self.edges[node.token]:
                self.consumers.setdefault(edge.node, {})[node.token] = None

    def gen(self, token: str) -> int:
        """The current generation of a node."""
        gen = 0
        while (token, gen) in self.dead:
            gen += 1
        return gen

    def current_end(self, token: str) -> End | None:
        """The outcome of the current generation, whatever it is."""
        return self.ends.get((token, self.gen(token)))

    def done(self, token: str) -> End | None:
        """The outcome of the current generation if it is `done`."""
        end = self.current_end(token)
        return end if end is not None and end.outcome == "done" else None

    def first_done(self, token: str) -> End | None:
        """The `done` End of the lowest generation: its values stay the node's values, whatever is recomputed later."""
        for gen in range(self.gen(token) + 1):
            end = self.ends.get((token, gen))
            if end is not None and end.outcome == "done":
                return end
        return None

    def failed(self, token: str) -> bool:
        """Whether the current generation ended `failed`."""
        end = self.current_end(token)
        return end is not None and end.outcome == "failed"

    def given_up(self, token: str) -> bool:
        """Whether a node is a guess that was cut off, and no call that was kept reads it."""
        return token in self.cuts and self.cuts.issuperset(self.consumers.get(token, ()))

    def begun(self, token: str, output: str) -> bool:
        """Whether the current generation has a first piece of a stream output."""
        return (token, self.gen(token), output) in self.firsts

    def log_nodes(self) -> list[Node]:
        """The nodes that are not cut, in the order in which they were recorded (pass, position)."""
        return [n for k in sorted(self.graphs) for n in self.graphs[k].nodes if n.token not in self.cuts]

    def open(self) -> list[str]:
        """Tokens of the nodes that are not cut and have neither a `done` nor a `failed` current End, in log order."""
        return [n.token for n in self.log_nodes() if not (self.done(n.token) or self.failed(n.token))]

    def results(self) -> dict[str, tuple[int, End]]:
        """What a driver knows of each node that is not cut: (RUNS sequence, End), `done` or `failed`.

        A node that has been `done` stays so while a lost tensor of it is recomputed: values come from its first `done`
        End, whose sequence is given; tensors and stream totals from the newest generation that has them.
        """
        if self._results is None:
            self._results = self._known()
        return self._results

    def _known(self) -> dict[str, tuple[int, End]]:
        known: dict[str, tuple[int, End]] = {}
        for token in self.nodes.keys() - self.cuts:
            end = self.current_end(token)
            if end is not None and end.outcome == "failed":
                known[token] = (self.seqs[token, end.gen], end)
            elif (first := self.first_done(token)) is not None:
                known[token] = (self.seqs[token, first.gen], self._merged(first, self.done(token)))
        return known

    def _merged(self, first: End, current: End | None) -> End:
        if current is None or current is first:
            return first
        kinds = self.nodes[first.node].outputs
        values = {name: value for name, value in first.outputs.items() if kinds.get(name) == "value"}
        return msgspec.structs.replace(current, outputs={**current.outputs, **values})


def fold(facts: Iterable[Fact]) -> State:
    """The state that these facts make, in whatever order they come."""
    state = State()
    for fact in facts:
        state.add(fact)
    return state
