"""decide() and releasable() against a model of the world: any order, duplicates, crashes, losses, cuts, cancel."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cornstalk.graph import State, fold
from cornstalk.messages import Graph
from tests.cornstalk.graph_world import check, fans, programs

SEEDS = st.integers(0, 2**32)
MODEST = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=250)


@given(programs(), SEEDS)
@MODEST
def test_without_faults_each_node_runs_once_and_its_tensors_are_released(passes: list[Graph], seed: int) -> None:
    world, state = check(passes, seed, "")
    assert world.finishes[0].status == "done"
    assert set(world.runs.values()) <= {1}
    assert world.runs.keys() >= state.nodes.keys() - state.cuts
    assert {node for node, _ in state.dead} <= state.cuts
    for token, node in state.nodes.items():
        consumers = state.consumers.get(token, {})
        plain_tensor = "tensor" in node.outputs.values() and "stream" not in node.outputs.values()
        if token not in state.cuts and plain_tensor and consumers and all(map(state.current_end, consumers)):
            assert (token, 0) in world.released


@given(programs() | fans(), SEEDS, st.sampled_from(["crash", "fail", "cancel"]))
@settings(MODEST, max_examples=900)
def test_faults(passes: list[Graph], seed: int, faults: str) -> None:
    check(passes, seed, faults)


@given(programs() | fans(), SEEDS, st.sampled_from(["crash", "fail", "cancel"]))
@MODEST
def test_order_and_duplicates_do_not_matter(passes: list[Graph], seed: int, faults: str) -> None:
    world, state = check(passes, seed, faults)
    shuffled = world.log * 2
    random.Random(seed).shuffle(shuffled)
    assert _said(fold(shuffled)) == _said(state)


def _said(state: State) -> dict[str, Any]:
    said = {name: getattr(state, name) for name in State.__slots__ if not name.startswith("_")}
    said["consumers"] = {producer: set(consumers) for producer, consumers in state.consumers.items()}
    said["log"] = state.log_nodes()
    said["results"] = state.results()
    return said
