"""decide() and releasable(), rule by rule."""

from __future__ import annotations

from typing import Any

import pytest

from cornstalk.graph import MAX_GENERATION, Release, State, decide, fold, releasable, unwanted
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
    Try,
    Upload,
    WorkItem,
)

ACCEPTED = Accepted(
    request="r", tenant="acme", app="a", app_version="1", lane="batch", deadline=99.0, trace="00-t", seed=5
)
ALL: dict[str, Kind] = {"v": "value", "t": "tensor", "s": "stream"}


def node(token: str, *edges: Any, outputs: dict[str, Kind] | None = None) -> Node:
    return Node(id=token, token=token, component="c", inputs={"in": list(edges)}, outputs=outputs or ALL, seed=7)


def graph(*nodes: Node, index: int = 0, cuts: tuple[str, ...] = (), closed: bool = False) -> Graph:
    return Graph(index=index, nodes=nodes, cuts=cuts, closed=closed)


def ref(token: str, gen: int = 0) -> Ref:
    return Ref("r", token, gen, "a", "t", 0, "host", "e", 0, 0, 1, "uint8", (1,))


def done(token: str, gen: int = 0, value: Any = "v") -> End:
    outputs = {"v": value, "t": ref(token, gen), "s": 3}
    return End(node=token, gen=gen, attempt="a", outcome="done", outputs=outputs)


def lost(token: str, gen: int, *vanished: tuple[str, int]) -> End:
    return End(node=token, gen=gen, attempt="a", outcome="lost", vanished=vanished)


def failed(token: str, gen: int = 0) -> End:
    return End(node=token, gen=gen, attempt="a", outcome="failed", error=Error(code="boom", message="boom"))


def first(token: str, output: str = "s", gen: int = 0) -> First:
    return First(node=token, gen=gen, attempt="a", output=output)


def after(*facts: Fact) -> list[tuple[str, int]]:
    """(node, gen) of what the last fact sends."""
    out = decide(fold([ACCEPTED, *facts]), facts[-1])
    assert all(isinstance(d, WorkItem) for d in out), out
    return [(d.node, d.gen) for d in out if isinstance(d, WorkItem)]


def V(token: str) -> Edge:
    return Edge(token, "v", False)


def T(token: str) -> Edge:
    return Edge(token, "t", False)


def S(token: str) -> Edge:
    return Edge(token, "s", True)


def whole(token: str) -> Edge:
    return Edge(token, "s", False)


def test_an_item_carries_what_a_worker_needs() -> None:
    upload = Upload("d" * 64, 3, "audio/wav")
    g = graph(node("a"), node("b", V("a"), T("a"), whole("a"), upload, 4))
    (item,) = decide(fold([ACCEPTED, g, done("a", value={"deep": [upload, 1]})]), done("a"))
    assert item == WorkItem(
        request="r",
        node="b",
        gen=0,
        component="c",
        lane="batch",
        tenant="acme",
        deadline=99.0,
        trace="00-t",
        seed=7,
        inputs={"in": [{"deep": [upload, 1]}, ref("a"), StreamRef("r", "a", 0, "s"), upload, 4]},
        outputs=ALL,
    )


def test_a_graph_sends_its_own_ready_nodes() -> None:
    g0 = graph(node("a"), node("b", V("a")))
    g1 = graph(node("c", V("a")), node("d"), index=1)
    assert after(g0) == [("a", 0)]
    assert after(g0, g1) == [("d", 0)]
    assert after(g0, done("a"), g1) == [("c", 0), ("d", 0)]


def test_a_join_is_sent_by_its_last_input() -> None:
    g = graph(node("a"), node("b"), node("j", V("a"), T("b")))
    assert after(g, done("a")) == []
    assert after(g, done("a"), done("b")) == [("j", 0)]


def test_a_stream_edge_is_ready_at_the_first_piece_of_its_output_and_a_whole_one_at_the_end() -> None:
    g = graph(node("a"), node("early", S("a")), node("late", whole("a")))
    assert after(g, first("a", "other")) == []
    assert after(g, first("a")) == [("early", 0)]
    assert after(g, done("a")) == [("early", 0), ("late", 0)]
    assert after(g, first("a"), failed("a")) == []
    assert decide(fold([ACCEPTED, g, first("a"), failed("a")]), first("a")) == []


@pytest.mark.parametrize("trigger", [Try(node="a", gen=0, attempt="x"), failed("a"), ACCEPTED])
def test_other_events_send_nothing(trigger: Fact) -> None:
    assert after(graph(node("a"), node("b", V("a"))), trigger) == []


def test_nothing_is_sent_before_accepted_or_after_the_end() -> None:
    g = graph(node("a"))
    assert decide(fold([g]), g) == []
    assert decide(fold([g, Cancel()]), g) == []
    assert decide(fold([ACCEPTED, g, Finish(status="done")]), g) == []
    assert decide(fold([done("a")]), done("a")) == []


def test_a_cancel_ends_the_request_at_any_fact_also_before_its_graph() -> None:
    cancel = Cancel(reason="client gone")
    logs: list[list[Fact]] = [[ACCEPTED, cancel], [cancel, ACCEPTED], [ACCEPTED, graph(node("a")), cancel, done("a")]]
    for facts in logs:
        (finish,) = decide(fold(facts), facts[-1])
        assert isinstance(finish, Finish)
        assert finish.status == "cancelled"
        assert finish.error is not None
        assert finish.error.message == "client gone"


def test_a_loss_recomputes_the_smallest_set_of_ancestors() -> None:
    """a -> b -> {c, d}; c has ended, b's tensor vanishes, then a's too; only d was waiting."""
    g = graph(node("a"), node("b", T("a")), node("c", T("b")), node("d", T("b")))
    log: list[Fact] = [g, done("a"), done("b"), done("c"), lost("d", 0, ("b", 0))]
    assert after(*log) == [("b", 1)]
    log.append(lost("b", 1, ("a", 0)))
    assert after(*log) == [("a", 1)]
    log.append(done("a", 1))
    assert after(*log) == [("b", 2)]
    log.append(done("b", 2))
    assert after(*log) == [("d", 1)]
    log.append(done("d", 1))
    assert after(*log) == []
    assert fold([ACCEPTED, *log]).open() == []


def test_a_report_of_a_loss_that_is_already_repaired_sends_its_reporter_on() -> None:
    g = graph(node("x"), node("y", T("x")), node("z", T("x")))
    assert after(g, done("x"), lost("z", 0, ("x", 0)), done("x", 1), lost("y", 0, ("x", 0))) == [("y", 1)]


def test_the_first_values_stay_and_tensors_are_the_current_ones() -> None:
    g = graph(node("x"), node("y", T("x")), node("z", V("x"), T("x")), node("only-value", V("x")))
    log: list[Fact] = [ACCEPTED, g, done("x", value="kept"), lost("y", 0, ("x", 0))]
    assert [d.node for d in decide(fold(log), None) if isinstance(d, WorkItem)] == ["x", "only-value"]
    log.append(done("x", 1, value="other"))
    items = {d.node: d.inputs["in"] for d in decide(fold(log), log[-1]) if isinstance(d, WorkItem)}
    assert items == {"y": [ref("x", 1)], "z": ["kept", ref("x", 1)], "only-value": ["kept"]}


def test_results_keep_a_value_while_its_tensor_is_made_again() -> None:
    state = State()
    log: list[Fact] = [ACCEPTED, graph(node("x"), node("y", T("x"))), done("x", value="kept")]
    for seq, fact in enumerate(log, 1):
        state.add(fact, seq)
    state.add(lost("y", 0, ("x", 0)), 4)
    assert state.results() == {"x": (3, done("x", value="kept"))}
    assert state.open() == ["x", "y"]
    state.add(done("x", 1, value="other"), 5)
    assert state.results()["x"] == (3, done("x", 1, value="kept"))
    state.add(failed("y", 1), 6)
    assert state.results()["y"] == (6, failed("y", 1))
    assert state.open() == []
    assert state.seq == 6


def test_a_node_lost_too_often_fails() -> None:
    g = graph(node("x"), node("y", T("x")))
    log: list[Fact] = [ACCEPTED, g]
    for gen in range(MAX_GENERATION):
        log += [done("x", gen), lost("y", gen, ("x", gen))]
    assert [(d.node, d.gen) for d in decide(fold(log), log[-1]) if isinstance(d, WorkItem)] == [("x", MAX_GENERATION)]
    log += [done("x", MAX_GENERATION), lost("y", MAX_GENERATION, ("x", MAX_GENERATION))]
    ends = decide(fold(log), log[-1])
    assert [(e.node, e.gen, e.error.code) for e in ends if isinstance(e, End) and e.error] == [
        ("x", MAX_GENERATION + 1, "lost_too_often"),
        ("y", MAX_GENERATION + 1, "lost_too_often"),
    ]
    assert len(ends) == 2


def test_an_output_that_was_not_delivered_fails_its_consumer() -> None:
    g = graph(node("a"), node("b", V("a")))
    bare = End(node="a", gen=0, attempt="a", outcome="done")
    (end,) = decide(fold([ACCEPTED, g, bare]), bare)
    assert isinstance(end, End)
    assert (end.node, end.outcome) == ("b", "failed")
    assert end.error is not None
    assert end.error.code == "missing_output"


def test_a_cut_node_is_not_sent_but_what_it_said_counts() -> None:
    """A kept call may hold an edge to a cut one whose value it already knew, and may need what a cut one found gone."""
    g0 = graph(node("a"), node("x"), node("guess", V("a"), T("x")))
    g1 = graph(index=1, cuts=("guess",))
    assert after(g0, g1, done("a"), done("x")) == []
    assert after(g0, done("a"), done("x"), g1, lost("guess", 0, ("x", 0))) == [("x", 1)]
    kept = graph(node("kept", V("a")), node("z"))
    assert after(kept, done("z"), graph(index=1, cuts=("z",)), graph(node("a"), index=2), done("a")) == [("kept", 0)]
    state = fold([ACCEPTED, g0, g1])
    assert [n.token for n in state.log_nodes()] == ["a", "x"]
    assert state.open() == ["a", "x"]


def test_tensors_are_released_when_the_graph_is_closed_and_all_consumers_have_ended() -> None:
    tensor: dict[str, Kind] = {"t": "tensor"}
    g = graph(node("x", outputs=tensor), node("y", T("x"), outputs=tensor), node("z", T("x"), outputs=tensor))
    closing = graph(index=1, closed=True)
    x, y, z = (End(node=n, gen=0, attempt="a", outcome="done", outputs={"t": ref(n)}) for n in "xyz")

    def released(*facts: Fact) -> list[Release]:
        return releasable(fold([ACCEPTED, g, *facts]), facts[-1])

    assert released(x, y, z) == []
    assert released(x, closing, y) == []
    assert released(x, closing, y, z) == [Release("x", 0)]
    assert released(x, closing, y, failed("z")) == [Release("x", 0)]
    assert released(x, y, z, closing) == [Release("x", 0)]
    assert released(x, y, lost("z", 0, ("x", 0)), closing) == []
    x1 = End(node="x", gen=1, attempt="b", outcome="done", outputs={"t": ref("x", 1)})
    z1 = End(node="z", gen=1, attempt="b", outcome="done", outputs={"t": ref("z", 1)})
    assert released(x, y, lost("z", 0, ("x", 0)), closing, x1, z1) == [Release("x", 0), Release("x", 1)]


def test_tensors_of_a_cut_node_are_released_at_once_and_all_of_a_request_at_its_end() -> None:
    g = graph(node("x"), node("y", T("x")))
    cut = graph(index=1, cuts=("x", "y"))
    assert releasable(fold([ACCEPTED, g, done("x"), cut]), cut) == [Release("x", 0)]
    assert releasable(fold([ACCEPTED, g, cut, done("x")]), done("x")) == [Release("x", 0)]
    finish = Finish(status="failed")
    assert releasable(fold([ACCEPTED, g, finish]), finish) == [Release()]
    assert releasable(fold([finish, done("x")]), done("x")) == [Release()]
    assert releasable(fold([ACCEPTED, g, first("x")]), first("x")) == []


def test_a_node_with_a_stream_or_without_consumers_keeps_its_tensors_to_the_end() -> None:
    closing = graph(index=1, closed=True)
    g = graph(node("x"), node("y", T("x"), outputs={"t": "tensor"}))
    assert releasable(fold([ACCEPTED, g, done("x"), closing, done("y")]), done("y")) == []


def test_nobody_wants_what_is_open_when_the_request_ends_nor_a_guess_that_no_kept_call_reads() -> None:
    nodes = graph(node("a"), node("b"), node("guess"), node("read"), node("kept", Edge("read", "v", False)))
    cut = graph(index=1, cuts=("guess", "read"))
    facts: list[Fact] = [ACCEPTED, nodes, done("a"), cut]
    assert unwanted(fold(facts), cut) == {"guess"}
    assert unwanted(fold([*facts, done("guess")]), cut) == set()
    assert unwanted(fold(facts), nodes) == unwanted(fold(facts), done("a")) == set()
    for over in (Cancel(), Finish(status="done")):
        assert unwanted(fold([*facts, over]), over) == {"b", "guess", "read", "kept"}
