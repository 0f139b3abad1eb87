"""What a request's facts tell of each node: when it could run, when it ended, how often it was begun again."""

from __future__ import annotations

from typing import Any

from broker.facts import Log
from broker.reads import Stored
from broker.subjects import attempt, end, first, graph
from cornstalk.messages import Edge, End, Error, Fact, First, Graph, Node, Times, Try, encode
from gateway.history import History

R = "0" * 32
MADE = Node(id="eye#0", token="eye", component="c-eye", line="app.py:7", outputs={"seen": "tensor"})
TOLD = Node(
    id="mind#0",
    token="mind",
    component="c-mind",
    inputs={"seen": Edge("eye", "seen", False)},
    outputs={"text": "stream"},
)
SAID = Node(
    id="voice#0",
    token="voice",
    component="c-voice",
    inputs={"text": Edge("mind", "text", True)},
    outputs={"audio": "stream"},
)


def subject(fact: Fact) -> str:
    match fact:
        case Graph():
            return graph(R, fact.index)
        case End():
            return end(R, fact.node, fact.gen)
        case First():
            return first(R, fact.node, fact.gen, fact.output)
        case Try():
            return attempt(R, fact.node, fact.gen, fact.attempt)
    raise AssertionError(fact)


def history(*facts: tuple[float, Fact]) -> History:
    """Facts with the times at which they were stored."""
    messages = [Stored(subject(f), i, encode(f), at) for i, (at, f) in enumerate(facts, 1)]
    return History(Log(messages, len(messages)))


def ended(node: str, outcome: Any = "done", gen: int = 0, **more: Any) -> End:
    return End(node=node, gen=gen, attempt="a", outcome=outcome, **more)


GRAPH = Graph(index=0, nodes=(MADE, TOLD, SAID))


def test_a_node_is_ready_when_the_last_thing_that_it_needs_is_stored() -> None:
    facts: list[tuple[float, Fact]] = [
        (10.0, GRAPH),
        (12.0, ended("eye", times=Times(published=10.1, claimed=10.2, started=10.3, ended=11.9))),
        (13.0, First(node="mind", gen=0, attempt="a", output="text")),
    ]
    eye, mind, voice = history(*facts).nodes()
    assert [n["outcome"] for n in (eye, mind, voice)] == ["done", "", ""]
    assert (eye["times"]["recorded"], eye["times"]["ready"], eye["times"]["stored"]) == (10.0, 10.0, 12.0)
    assert (eye["times"]["published"], eye["times"]["ended"]) == (10.1, 11.9)
    assert mind["times"]["ready"] == 12.0
    assert mind["times"]["first"] == 13.0
    assert voice["times"]["ready"] == 13.0  # a stream is read from its first piece on
    assert (mind["needs"], voice["needs"]) == (["eye"], ["mind"])
    assert "stored" not in voice["times"]


def test_pieces_of_streams_are_counted_once_they_have_ended() -> None:
    facts: list[tuple[float, Fact]] = [
        (10.0, GRAPH),
        (11.0, ended("eye", outputs={"seen": 7})),
        (12.0, ended("mind", outputs={"text": 12})),
    ]
    eye, mind, voice = history(*facts).nodes()
    assert mind["chunks"] == {"text": 12}
    assert "chunks" not in eye
    assert "chunks" not in voice


def test_what_waits_for_another_is_not_ready() -> None:
    eye, mind, voice = history((10.0, GRAPH)).nodes()
    assert eye["times"]["ready"] == 10.0
    assert "ready" not in mind["times"]
    assert "ready" not in voice["times"]


def test_a_generation_that_was_lost_is_told_before_the_one_that_followed() -> None:
    facts: list[tuple[float, Fact]] = [
        (10.0, GRAPH),
        (12.0, ended("eye")),
        (14.0, ended("mind", "lost", vanished=(("eye", 0),))),
        (16.0, ended("eye", gen=1)),
        (18.0, ended("mind", gen=1)),
    ]
    eye, mind, _ = history(*facts).nodes()
    assert (eye["gen"], mind["gen"]) == (1, 1)
    assert [g["outcome"] for g in eye["earlier"]] == ["done"]
    assert [(g["outcome"], g["vanished"]) for g in mind["earlier"]] == [("lost", [{"node": "eye", "gen": 0}])]
    assert (mind["earlier"][0]["times"]["ready"], mind["earlier"][0]["times"]["stored"]) == (12.0, 14.0)
    assert eye["times"]["ready"] == 14.0  # when it was missed
    assert mind["times"]["ready"] == 16.0


def test_a_failure_has_its_cause_and_its_restarts() -> None:
    error = Error(code="poison", message="its worker died", component="c-eye")
    tries = [(t, Try(node="eye", gen=0, attempt=f"t{t:.0f}")) for t in (11.0, 12.0)]
    eye = history((10.0, GRAPH), *tries, (13.0, ended("eye", "failed", error=error, worker="w-1"))).nodes()[0]
    assert (eye["outcome"], eye["restarts"], eye["error"], eye["worker"]) == ("failed", 2, error, "w-1")
    assert eye["times"]["started"] == 0.0
    assert eye["times"]["stored"] == 13.0


def test_guesses_that_were_given_up_are_left_out() -> None:
    found = history((10.0, GRAPH), (11.0, Graph(index=1, cuts=("mind", "voice"))))
    assert [n["node"] for n in found.nodes()] == ["eye"]
    assert len(found.state.cuts) == 2
    assert found.facts == 2
