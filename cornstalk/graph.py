"""The policy of Cornstalk: pure functions from one request's stored facts to what must happen next.

`decide(state, trigger)` is edge-triggered: the state must hold the trigger and every fact stored before it (a prefix of
the log, or more). Then whoever handles the last input of a node sees all of its inputs, and nothing hangs; deciding
twice, late or elsewhere gives the same items with the same Msg-Ids, and does no harm.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from msgspec import Struct

from cornstalk.graph_state import State, fold
from cornstalk.messages import (
    Accepted,
    Cancel,
    Edge,
    End,
    Error,
    Extension,
    Fact,
    Finish,
    First,
    Graph,
    Node,
    Ref,
    StreamRef,
    WorkItem,
    extensions,
    substitute,
)

__all__ = ["MAX_GENERATION", "Release", "State", "decide", "fold", "releasable", "unwanted"]

MAX_GENERATION: Final = 6
"""A node of a higher generation fails: its data was lost too often."""
DISPATCHER: Final = "dispatcher"
"""The attempt in an End that no worker wrote. Any two of one node and generation are equal."""

Decision = WorkItem | End | Finish


class Release(Struct, frozen=True):
    """Tensors that nobody can need any more: those of one generation of a node, or (`node` empty) of the request."""

    node: str = ""
    gen: int = 0


def decide(state: State, trigger: Fact | None) -> list[Decision]:
    """What must be published, given a state that holds the trigger (None: look at every node, for adoption).

    - WorkItem: a node that the trigger may have made ready, and that is ready.
    - End(failed): a node whose data was lost too often, or that needs an output its producer did not deliver.
    - Finish(cancelled): a Cancel is stored. `done` and `failed` of a request are its driver's to write.
    Nothing once the request has an end, or before it is accepted (an orphan that comes after the purge).
    """
    if state.accepted is None or state.finish is not None:
        return []
    if state.cancel is not None:
        reason = state.cancel.reason or "cancelled by the client"
        return [Finish(status="cancelled", error=Error(code="cancelled", message=reason))]
    decisions = (_next(state, state.accepted, token) for token in dict.fromkeys(_touched(state, trigger)))
    return [d for d in decisions if d is not None]


def _touched(state: State, trigger: Fact | None) -> Iterable[str]:
    """Tokens whose readiness the trigger can have changed.

    A Graph touches only its own nodes: their producers are older, for a driver stores pass k after pass k-1.
    """
    match trigger:
        case None:
            return state.nodes
        case Graph():
            return [n.token for n in trigger.nodes]
        case First():
            begun = Edge(trigger.node, trigger.output, True)
            return [c for c in state.consumers.get(trigger.node, ()) if begun in state.edges[c]]
        case End(outcome="done"):
            return state.consumers.get(trigger.node, ())
        case End(outcome="lost"):
            return [node for node, _ in trigger.vanished] + [trigger.node]
    return ()


def _next(state: State, accepted: Accepted, token: str) -> WorkItem | End | None:
    """What the current generation of a node needs to be published now. A cut node needs nothing, nor does one without a
    component: the gateway that holds the client's connection makes it.

    What a cut node reported still counts, done or vanished: a call that was kept may hold an edge to it, and a kept
    call may need what it found missing.
    """
    node, gen = state.nodes.get(token), state.gen(token)
    if node is None or not node.component or token in state.cuts or (token, gen) in state.ends:
        return None
    if gen > MAX_GENERATION:
        return _failed(node, gen, "lost_too_often", f"what it made was lost {gen} times")
    if not all(_ready(state, edge) for edge in state.edges[token]):
        return None
    missing = [e for e in state.edges[token] if not _delivered(state, e)]
    if missing:
        producer = state.nodes[missing[0].node]
        return _failed(node, gen, "missing_output", f"{producer.id} ended without its output {missing[0].output!r}")
    return WorkItem(
        request=accepted.request,
        node=token,
        gen=gen,
        component=node.component,
        lane=accepted.lane,
        tenant=accepted.tenant,
        deadline=accepted.deadline,
        trace=accepted.trace,
        seed=node.seed,
        inputs=_inputs(state, accepted.request, node),
        outputs=node.outputs,
    )


def _failed(node: Node, gen: int, code: str, message: str) -> End:
    error = Error(code=code, message=message, component=node.component, node=node.token, attempt=DISPATCHER)
    return End(node=node.token, gen=gen, attempt=DISPATCHER, outcome="failed", error=error)


def _kind(state: State, edge: Edge) -> str:
    return state.nodes[edge.node].outputs.get(edge.output, "tensor")


def _source(state: State, edge: Edge) -> End | None:
    """The `done` End that an edge reads: a value stays what the first one said, a tensor is the current one's."""
    if _kind(state, edge) == "value":
        return None if state.failed(edge.node) else state.first_done(edge.node)
    return state.done(edge.node)


def _ready(state: State, edge: Edge) -> bool:
    if edge.node not in state.nodes:
        return False
    running = edge.stream and state.begun(edge.node, edge.output) and state.current_end(edge.node) is None
    return running or _source(state, edge) is not None


def _delivered(state: State, edge: Edge) -> bool:
    end = _source(state, edge)
    return _kind(state, edge) == "stream" or (end is not None and edge.output in end.outputs)


def _inputs(state: State, request: str, node: Node) -> dict[str, Any]:
    """The inputs of a ready node. A stream travels as a StreamRef, also to who wants it whole: the log holds it."""

    def change(extension: Extension) -> Any:
        if not isinstance(extension, Edge):
            return extension
        if _kind(state, extension) == "stream":
            return StreamRef(request, extension.node, state.gen(extension.node), extension.output)
        end = _source(state, extension)
        assert end is not None
        return end.outputs[extension.output]

    return {name: substitute(value, change) for name, value in node.inputs.items()}


def releasable(state: State, trigger: Fact) -> list[Release]:
    """The tensors that nobody can need any more because of the trigger. A hint: saying it twice does no harm.

    A node's generations are released once every consumer has ended (also a cut one: it may be running, and would
    report a loss) and no pass can add another consumer, or once the node itself is cut. A response holds no tensors,
    but its streams may: a node with a stream output, and one without consumers, wait for the end of the request. A
    regenerated consumer whose inputs were released finds them gone, and lineage makes them again.
    """
    if state.finish is not None or state.accepted is None:
        late = isinstance(trigger, Finish) or (isinstance(trigger, End) and trigger.outcome == "done")
        return [Release()] if late else []
    match trigger:
        case End():
            near = [
                trigger.node,
                *(e.node for e in state.edges.get(trigger.node, ())),
                *(n for n, _ in trigger.vanished),
            ]
        case Graph():
            near = list(state.nodes) if state.closed else list(trigger.cuts)
        case _:
            near = []
    return [
        Release(token, gen)
        for token in dict.fromkeys(near)
        if _unneeded(state, token)
        for gen in range(state.gen(token) + 1)
        if (end := state.ends.get((token, gen))) is not None
        and any(isinstance(x, Ref) for x in extensions(end.outputs))
    ]


def unwanted(state: State, trigger: Fact) -> set[str]:
    """Nodes whose work is waited for by nobody, because of the trigger: to be stopped, or taken out of their queues.

    Those without an end when the request is cancelled or ended; and guesses that were cut off, unless a call that was
    kept reads them. A hint, as `releasable` is: what goes on all the same costs only work.
    """
    match trigger:
        case Cancel() | Finish():
            near = set(state.nodes)
        case Graph() if trigger.cuts:
            near = {token for token in state.cuts if state.given_up(token)}
        case _:
            return set()
    return {token for token in near if state.current_end(token) is None}


def _unneeded(state: State, token: str) -> bool:
    node = state.nodes.get(token)
    if node is None:
        return False
    if token in state.cuts:
        return True
    consumers = state.consumers.get(token)
    if not state.closed or not consumers or "stream" in node.outputs.values():
        return False
    return all(state.current_end(c) is not None for c in consumers)
