"""A simple model of everything round decide(): broker, dispatchers, workers, a driver, and what can go wrong.

One request. The log holds each subject once; the queue drops Msg-Ids it knows; dispatchers handle triggers in any order
on any prefix that holds the trigger; a node's output is a text that names its inputs, so a wrong input shows.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from cornstalk import graph
from cornstalk.graph import Decision, Release, State
from cornstalk.messages import (
    Accepted,
    Cancel,
    Edge,
    End,
    Error,
    Fact,
    Finish,
    First,
    Graph,
    Kind,
    Node,
    Ref,
    StreamRef,
    WorkItem,
    extensions,
    substitute,
)

LOSSES = 3
STEPS = 4000
FAULTY_STEPS = 60

OUTPUTS: list[dict[str, Kind]] = [
    {"v": "value"},
    {"t": "tensor"},
    {"s": "stream"},
    {"v": "value", "t": "tensor"},
    {"s": "stream", "t": "tensor"},
]

Key = tuple[str, int]


@st.composite
def programs(draw: st.DrawFn) -> list[Graph]:
    """Up to three passes over up to nine nodes, some cut again by a later pass; edges of every kind."""
    passes: list[Graph] = []
    nodes: list[Node] = []
    cuts: set[str] = set()
    count = draw(st.integers(1, 3))
    for index in range(count):
        cut: set[str] = set()
        alive = [n for n in nodes if n.token not in cuts]
        if draw(st.booleans()) and alive:
            cut = _with_consumers({draw(st.sampled_from(alive)).token}, nodes) - cuts
            cuts |= cut
        new: list[Node] = []
        for _ in range(draw(st.integers(0 if index else 1, 3))):
            alive = [n for n in nodes if n.token not in cuts]
            of_any = st.lists(st.sampled_from(alive), unique_by=lambda n: n.token, max_size=3) if alive else st.just([])
            edges = []
            for source in draw(of_any):
                output = draw(st.sampled_from(sorted(source.outputs)))
                edges.append(Edge(source.token, output, source.outputs[output] == "stream" and draw(st.booleans())))
            name = f"n{len(nodes)}"
            outputs = draw(st.sampled_from(OUTPUTS))
            new.append(Node(id=name, token=name, component="c", inputs={"in": [edges, "x"]}, outputs=outputs))
            nodes.append(new[-1])
        closed = index == count - 1
        passes.append(Graph(index=index, nodes=tuple(new), cuts=tuple(sorted(cut)), closed=closed))
    return passes


@st.composite
def fans(draw: st.DrawFn) -> list[Graph]:
    """One tensor or stream with many readers: several of them may find it gone, or are guesses given up."""
    output: str = draw(st.sampled_from("ts"))
    kinds: dict[str, Kind] = {"t": "tensor"} if output == "t" else {"s": "stream"}
    source = Node(id="x", token="x", component="c", inputs={"in": [[], "x"]}, outputs=kinds)
    inputs = {"in": [[Edge("x", output, output == "s")], "x"]}
    readers = [
        Node(id=name, token=name, component="c", inputs=inputs, outputs={"v": "value"})
        for name in "abcdef"[: draw(st.integers(2, 6))]
    ]
    cuts = tuple(r.token for r in readers[1:] if draw(st.booleans()))
    return [Graph(index=0, nodes=(source, *readers)), Graph(index=1, cuts=cuts, closed=True)]


def _with_consumers(cut: set[str], nodes: list[Node]) -> set[str]:
    for node in nodes:
        if any(e.node in cut for e in extensions(node.inputs) if isinstance(e, Edge)):
            cut = cut | {node.token}
    return cut


def text(node: str, inputs: Iterable[str], output: str) -> str:
    """What `output` of `node` is, given the texts it read."""
    return f"{node}({','.join(inputs)}).{output}"


def true_values(passes: list[Graph]) -> dict[tuple[str, str], str]:
    """What each output of each node is."""
    true: dict[tuple[str, str], str] = {}
    for node in (n for p in passes for n in p.nodes):
        read = [true[e.node, e.output] for e in extensions(node.inputs) if isinstance(e, Edge)]
        true |= {(node.token, o): text(node.token, read, o) for o in node.outputs}
    return true


@dataclass(frozen=True)
class Rules:
    """What a mutation may change: the policy, the fold, the fence, the check of a read."""

    decide: Callable[[State, Fact | None], list[Decision]] = graph.decide
    releasable: Callable[[State, Fact], list[Release]] = graph.releasable
    fold: Callable[[Iterable[Fact]], State] = graph.fold
    fence: bool = True
    checked: bool = True


class World:
    """`faults`: "" (nothing goes wrong), or "crash", "fail", "cancel": those, with crashes, losses and forgetting."""

    def __init__(self, passes: list[Graph], seed: int, faults: str, rules: Rules = Rules()) -> None:
        self.rnd, self.faults, self.passes, self.rules = random.Random(seed), faults, passes, rules
        self.log: list[Fact] = []
        self.subjects: set[tuple[Any, ...]] = set()
        self.todo: list[int] = []  # positions in the log, not yet acked by a dispatcher
        self.queue: list[WorkItem] = []
        self.ids: set[Key] = set()  # the window of Msg-Ids
        self.lost: set[Key] = set()
        self.released: set[Key] = set()
        self.runs: dict[str, int] = {}
        self.true = true_values(passes)
        self.put(("accepted",), Accepted(request="r", tenant="t", app="a", app_version="1", deadline=1e9))

    @property
    def finishes(self) -> list[Finish]:
        return [f for f in self.log if isinstance(f, Finish)]

    def put(self, subject: tuple[Any, ...], fact: Fact) -> None:
        """Put-if-absent: who comes second adopts what is stored."""
        if subject in self.subjects and self.rules.fence:
            return
        self.subjects.add(subject)
        self.log.append(fact)
        self.todo.append(len(self.log) - 1)

    def end(self, end: End) -> None:
        self.put(("node", end.node, end.gen, "end"), end)

    def publish(self, decisions: list[Decision], crash: float = 0.0) -> bool:
        """In any order; False when killed between two."""
        self.rnd.shuffle(decisions)
        for decision in decisions:
            if self.rnd.random() < crash:
                return False
            match decision:
                case Finish():
                    self.put(("end",), decision)
                case End():
                    self.end(decision)
                case WorkItem() if (decision.node, decision.gen) not in self.ids:
                    self.ids.add((decision.node, decision.gen))
                    self.queue.append(decision)
        return True

    def dispatcher(self) -> None:
        at = self.rnd.choice(self.todo)
        state = self.rules.fold(self.log[: self.rnd.randint(at + 1 if self.rules.checked else 0, len(self.log))])
        decisions = self.rules.decide(state, self.log[at])
        for item in decisions:
            if isinstance(item, WorkItem):
                assert (item.node, item.gen) not in state.ends, f"sends {item.node}, which has ended"
                assert item.node not in state.cuts, f"sends {item.node}, which is cut"
        crash = 0.15 if self.faults else 0.0
        if not self.publish(decisions, crash) or self.rnd.random() < crash:
            return
        releases = self.rules.releasable(state, self.log[at])
        self.released |= {(r.node, r.gen) for r in releases}
        assert state.finish or Release() not in releases
        self.todo.remove(at)

    def worker(self) -> None:
        item = self.rnd.choice(self.queue)
        if self.faults and self.rnd.random() < 0.1:
            return  # killed before the End: redelivered
        if ("node", item.node, item.gen, "end") in self.subjects and self.rules.fence:
            self.queue.remove(item)  # redelivered after its End: looks first
        elif self._run(item) and not (self.faults and self.rnd.random() < 0.1):
            self.queue.remove(item)

    def _run(self, item: WorkItem) -> bool:
        """False: it goes on later, for a stream it makes or reads has only begun."""
        state = graph.fold(self.log)
        end = End(node=item.node, gen=item.gen, attempt=f"a{self.rnd.random()}", outcome="done")
        streams = [e for e in extensions(item.inputs) if isinstance(e, StreamRef)]
        tensors = [(e.node, e.gen) for e in extensions(item.inputs) if isinstance(e, Ref)]
        ends = [state.ends.get((s.node, s.gen)) for s in streams]
        gone = [k for k in tensors if k in self.lost | self.released]
        gone += [(e.node, e.gen) for e in ends if e is not None and e.outcome != "done"]
        if item.node in state.cuts and self.rnd.random() < 0.5:
            self.end(_change(end, outcome="cancelled"))
        elif gone:
            self.end(_change(end, outcome="lost", vanished=tuple(gone)))
        elif self._begins(item) or None in ends:
            return False
        elif self.faults == "fail" and self.rnd.random() < 0.1:
            self.end(_change(end, outcome="failed", error=Error(code="boom", message="boom")))
        else:
            self.runs[item.node] = self.runs.get(item.node, 0) + 1
            self.end(_change(end, outputs=self._outputs(item)))
        return True

    def _begins(self, item: WorkItem) -> bool:
        subject = ("node", item.node, item.gen, "first")
        if "s" not in item.outputs or subject in self.subjects:
            return False
        self.put(subject, First(node=item.node, gen=item.gen, attempt="a", output="s"))
        return True

    def _outputs(self, item: WorkItem) -> dict[str, Any]:
        def read(extension: Any) -> Any:
            return self.true[extension.node, extension.output]  # the fence holds: a generation has one content

        (inputs, _) = substitute(item.inputs, read)["in"]
        made: dict[str, Any] = {}
        for output, kind in item.outputs.items():
            content = text(item.node, inputs, output)
            assert content == self.true[item.node, output], "a node read wrong inputs"
            if kind == "tensor":
                ref = Ref("r", item.node, item.gen, "a", output, 0, "h", "e", 0, 0, 1, "uint8", (1,))
                made[output] = ref
            else:
                made[output] = content if kind == "value" else 1
        return made

    def driver(self, idle: bool) -> None:
        """Stores the next pass some time after the one before, sends its first items, and ends the request."""
        stored = len([f for f in self.log if isinstance(f, Graph)])
        if self.finishes or not (idle or self.rnd.random() < 0.2):
            return
        state = self.rules.fold(self.log)
        if stored < len(self.passes):
            self.put(("graph", stored), self.passes[stored])
            if self.rnd.random() < 0.5:
                sent = self.rules.decide(self.rules.fold(self.log), self.passes[stored])
                self.publish(sent, 0.3 if self.faults else 0.0)
        elif any(end.outcome == "failed" for _, end in state.results().values()):
            if idle:  # user code may catch it, so other nodes go on
                self.put(("end",), Finish(status="failed"))
        elif not state.open() and (self.faults or idle):
            self.put(("end",), Finish(status="done"))

    def misfortune(self) -> None:
        chance = self.rnd.random()
        awaited = [(r.node, r.gen) for item in self.queue for r in extensions(item.inputs) if isinstance(r, Ref)]
        made = awaited or [(f.node, f.gen) for f in self.log if isinstance(f, End) and "t" in f.outputs]
        if chance < 0.2 and made and len(self.lost) < LOSSES:
            self.lost.add(self.rnd.choice(made))
        elif chance > 0.98:
            self.ids.clear()  # the window is over
        elif self.faults == "cancel" and 0.5 < chance < 0.52:
            self.put(("cancel",), Cancel(reason="user"))
        elif self.faults == "cancel" and 0.52 < chance < 0.53:
            self.put(("end",), Finish(status="expired"))
        elif self.faults == "fail" and 0.6 < chance < 0.65:  # adoption: every node is looked at
            self.publish(self.rules.decide(self.rules.fold(self.log), None))

    def run(self) -> State:
        """Until nothing is left to do."""
        for step in range(STEPS):
            if step < FAULTY_STEPS and self.faults:
                self.misfortune()
            self.driver(idle=not self.todo and not self.queue)
            acts = [act for act, on in ((self.dispatcher, self.todo), (self.worker, self.queue)) if on]
            if acts:
                self.rnd.choice(acts)()
            elif self.finishes or step > FAULTY_STEPS + 10:
                break
        else:
            raise AssertionError("does not end")
        return graph.fold(self.log)


def _change(end: End, **fields: Any) -> End:
    return End(**{"node": end.node, "gen": end.gen, "attempt": end.attempt, "outcome": end.outcome, **fields})


def check(passes: list[Graph], seed: int, faults: str, rules: Rules = Rules()) -> tuple[World, State]:
    """Run a world to its end and assert what every world must show."""
    world = World(passes, seed, faults, rules)
    state = world.run()
    assert len(world.finishes) == 1, f"{len(world.finishes)} ends of the request"
    ends = [(e.node, e.gen) for e in world.log if isinstance(e, End)]
    assert len(set(ends)) == len(ends), "two outcomes of one generation"
    match world.finishes[0].status:
        case "done":
            _check_results(world, state)
            assert faults or {node for node, _ in state.dead} <= state.cuts, "something was made twice"
        case "failed":
            assert faults == "fail", "a few losses never fail a request"
            assert any(e.outcome == "failed" for _, e in state.results().values()), "failed by an old generation"
        case "cancelled":
            assert state.cancel
    assert ("", 0) in world.released, "the request's tensors were never released as a whole"
    _check_recomputed(world, state)
    return world, state


def _check_results(world: World, state: State) -> None:
    results = state.results()
    assert set(results) == state.nodes.keys() - state.cuts, "a node without a result"
    for token, (_, end) in results.items():
        assert end.outcome == "done"
        for output, kind in state.nodes[token].outputs.items():
            if kind == "value":
                assert end.outputs[output] == world.true[token, output]


def _check_recomputed(world: World, state: State) -> None:
    """Nothing is made again without cause: its tensor vanished, or its input did."""
    for key in state.dead:
        end = state.ends.get(key)
        named = end is not None and end.outcome == "lost" and bool(end.vanished)
        unfinished = end is not None and end.outcome in ("failed", "cancelled")
        assert key in world.lost | world.released or named or unfinished, f"{key} was given up without cause"
