"""Large values: marks that depend on content alone, a log that stays small, and passes that agree with it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from cornstalk import CompositeTask
from cornstalk.large import LARGE, ROOM, Spooled, is_mark, marks, value_of, with_large, without_large
from cornstalk.messages import Edge, Node, Upload, decode_value, encode
from cornstalk.record import Pass, Result
from cornstalk.task import UnitTask

EDGE = Edge("n", "text", False)


def restored(small: dict[str, Any], spool: Spooled) -> dict[str, Any]:
    return with_large(decode_value(encode(small)), {mark: value_of(mark, data) for mark, data in spool.items()})


@pytest.mark.parametrize(
    "value",
    [
        "x" * LARGE,
        "ä" * LARGE,
        "😀" * (LARGE // 4),
        b"\0" * 10 * LARGE,
        ["short"] * 50_000,
        {"a": {"b": ["x" * LARGE, 1, 2.5, None, True]}},
        [EDGE, "y" * 3 * LARGE, [EDGE, b"z" * LARGE]],
        [EDGE, *[f"{i:010000}" for i in range(100)]],
        [EDGE, *[f"{i:02000}" for i in range(200)]],
        {"edge": EDGE, "table": {str(i): i for i in range(20_000)}},
        [Upload("d" * 64, 3, "audio/wav"), "x" * LARGE],
    ],
)
def test_a_value_comes_back_from_little(value: Any) -> None:
    values = {"large": value, "small": 5}
    spool: Spooled = {}
    small = without_large(values, spool)
    assert len(encode(small)) <= ROOM
    assert restored(small, spool) == values
    assert set(marks(small)) == set(spool)
    assert without_large(values, {}) == small
    assert without_large(small, {}) == small


def test_small_values_stay_as_they_are() -> None:
    values = {"text": "x" * (LARGE - 100), "more": [1, EDGE]}
    spool: Spooled = {}
    assert without_large(values, spool) == values
    assert spool == {}


def test_references_stay_where_a_dispatcher_sees_them() -> None:
    small = without_large({"parts": [EDGE, *["x" * 5000] * 100]}, {})
    assert small["parts"][0] == EDGE


def test_a_clients_file_is_no_mark() -> None:
    assert not is_mark(Upload("d", 1, "text/plain"))


# ------------------------------------------------------------ passes


class Model(UnitTask):
    class Out(BaseModel):
        text: str
        parts: list[str]

    def __call__(self, *, prompt: str = "", parts: list[str] = [], extra: dict[str, str] = {}) -> Out:  # noqa: B006
        raise NotImplementedError


class Ask(BaseModel):
    prompt: str
    more: str = ""


class Two(CompositeTask):
    left, right = Model(), Model()

    def invoke(self, q: Ask) -> str:
        one = self.left(prompt=q.prompt, parts=[q.prompt, q.more])
        two = self.right(prompt=q.prompt, extra={"a": q.prompt[::-1]})
        return one.text + two.text


LONG = "word " * 60_000
ASK = Ask(prompt=LONG, more="more")


def stored(nodes: tuple[Node, ...]) -> list[Node]:
    """As they come back from the log."""
    return [
        Node(**{f: getattr(n, f) for f in n.__struct_fields__} | {"inputs": decode_value(encode(n.inputs))})
        for n in nodes
    ]


def test_a_graph_is_small_and_its_large_values_are_named() -> None:
    step = Pass([], {})
    assert step.run(Two(), ASK).kind == "wait"
    assert len(encode(step.new_nodes)) < 4096
    left, right = step.new_nodes
    spool = {mark: value_of(mark, data) for mark, data in step.large.items()}
    assert with_large(left.inputs, spool) == {"prompt": LONG, "parts": [LONG, "more"], "extra": {}}
    assert with_large(right.inputs, spool) == {"prompt": LONG, "parts": [], "extra": {"a": LONG[::-1]}}
    assert set(step.large) == set(marks(left.inputs)) | set(marks(right.inputs))


def test_the_next_pass_finds_its_calls_again_and_spools_nothing() -> None:
    first = Pass([], {})
    first.run(Two(), ASK)
    left, right = log = stored(first.new_nodes)
    again = Pass(log, {})
    assert again.run(Two(), ASK).kind == "wait"
    assert (again.new_nodes, again.cuts, again.large) == ((), (), {})
    known = {n.token: Result(seq=i, outputs={"text": LONG, "parts": [LONG]}) for i, n in enumerate((left, right), 1)}
    last = Pass(log, known)
    outcome = last.run(Two(), ASK)
    assert (outcome.kind, outcome.value, last.complete, last.large) == ("done", LONG + LONG, True, {})


def test_another_large_value_is_another_way() -> None:
    first = Pass([], {})
    first.run(Two(), ASK)
    for change in (Ask(prompt=LONG[:-1] + ".", more="more"), Ask(prompt=LONG, more="less")):
        outcome = Pass(stored(first.new_nodes), {}).run(Two(), change)
        assert outcome.kind == "raise"
        assert "invoke took another way" in str(outcome.error)


class Late(CompositeTask):
    """Before the first result is known its parts are an edge, or hold one; afterwards they are values."""

    head, tail, last = Model(), Model(), Model()

    def invoke(self, q: Ask) -> str:
        head = self.head(prompt="go")
        tail = self.tail(parts=head.parts)
        mixed = self.last(parts=[head.text, q.prompt, *["x" * 5000] * 30])
        return tail.text + mixed.text


def test_a_reference_and_the_large_value_it_became_are_the_same() -> None:
    first = Pass([], {})
    first.run(Late(), ASK)
    log = stored(first.new_nodes)
    assert len(log) == 3
    for text in ("xy", "y" * 100, LONG):
        known = {log[0].token: Result(seq=1, outputs={"text": text, "parts": [LONG, "b"] * 3})}
        again = Pass(log, known)
        assert again.run(Late(), ASK).kind == "wait"
        assert (again.new_nodes, again.cuts, again.fatal) == ((), (), None)
