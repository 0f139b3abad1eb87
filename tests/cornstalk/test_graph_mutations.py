"""The worlds have teeth: each known mistake in the protocol makes one of them fail within a bounded number of tries."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, find, settings
from hypothesis import strategies as st

from cornstalk import graph
from cornstalk.graph import Decision, Release, State
from cornstalk.messages import End, Fact, Graph
from tests.cornstalk.graph_world import Rules, check, fans, programs

CASES = st.tuples(programs() | fans(), st.integers(0, 2**32), st.sampled_from(["", "crash", "fail", "cancel"]))
TRIES = settings(
    phases=[Phase.generate], max_examples=6000, database=None, deadline=None, suppress_health_check=list(HealthCheck)
)

Decide = Callable[[State, Fact | None], list[Decision]]


def believing(kind: type[State] = State, **fields: object) -> Callable[[State], State]:
    """A copy of a state, with some fields changed."""

    def copy(state: State) -> State:
        other = kind()
        for name in State.__slots__:
            setattr(other, name, fields.get(name, getattr(state, name)))
        return other

    return copy


def losses_not_marked(facts: Iterable[Fact]) -> State:
    return graph.fold(msgspec.structs.replace(f, vanished=()) if isinstance(f, End) else f for f in facts)


def without(dropped: Callable[[End], Iterable[str]]) -> Decide:
    """A policy that, on a loss, does not send some of the nodes."""

    def decide(state: State, trigger: Fact | None) -> list[Decision]:
        decisions = graph.decide(state, trigger)
        if not isinstance(trigger, End) or trigger.outcome != "lost":
            return decisions
        return [d for d in decisions if getattr(d, "node", "") not in set(dropped(trigger))]

    return decide


def ended_sent_again(state: State, trigger: Fact | None) -> list[Decision]:
    if isinstance(trigger, End):
        consumers = state.consumers.get(trigger.node, {})
        state = believing(ends={k: e for k, e in state.ends.items() if k[0] not in consumers})(state)
    return graph.decide(state, trigger)


class AnyFailure(State):
    """Takes the failure of an old generation for the node's."""

    __slots__ = ()

    def failed(self, token: str) -> bool:
        return any(self.ends[k].outcome == "failed" for k in self.ends if k[0] == token)

    def results(self) -> dict[str, tuple[int, End]]:
        old = {e.node: (0, e) for e in self.ends.values() if e.outcome == "failed" and e.node not in self.cuts}
        return super().results() | old


def stale_failure(facts: Iterable[Fact]) -> State:
    return believing(AnyFailure)(graph.fold(facts))


def half_a_graph(state: State, trigger: Fact | None) -> list[Decision]:
    if isinstance(trigger, Graph):
        trigger = msgspec.structs.replace(trigger, nodes=trigger.nodes[: len(trigger.nodes) // 2])
    return graph.decide(state, trigger)


def cuts_sent(state: State, trigger: Fact | None) -> list[Decision]:
    return graph.decide(believing(cuts=set())(state), trigger)


def cut_reports_ignored(state: State, trigger: Fact | None) -> list[Decision]:
    return [] if isinstance(trigger, End) and trigger.node in state.cuts else graph.decide(state, trigger)


def released_before_closed(state: State, trigger: Fact) -> list[Release]:
    return graph.releasable(believing(closed=True)(state), trigger)


MUTATIONS = {
    "a read without its trigger": Rules(checked=False),
    "no fence": Rules(fence=False),
    "losses not marked": Rules(fold=losses_not_marked),
    "the reporter of a loss not sent again": Rules(decide=without(lambda end: [end.node])),
    "the lost node not sent again": Rules(decide=without(lambda end: [n for n, _ in end.vanished])),
    "ended nodes sent again": Rules(decide=ended_sent_again),
    "a stale failure": Rules(fold=stale_failure),
    "half a graph": Rules(decide=half_a_graph),
    "cut nodes sent": Rules(decide=cuts_sent),
    "a loss that a cut node reported ignored": Rules(decide=cut_reports_ignored),
    "tensors released before the graph is closed": Rules(releasable=released_before_closed),
}


@pytest.mark.parametrize("rules", MUTATIONS.values(), ids=MUTATIONS.keys())
def test_each_mutation_is_caught(rules: Rules) -> None:
    def broken(case: tuple[list[Graph], int, str]) -> bool:
        try:
            check(*case, rules)
        except AssertionError:
            return True
        return False

    find(CASES, broken, settings=TRIES, random=Random(7))
