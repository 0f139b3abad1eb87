"""The waterfall, from fixed traces."""

from __future__ import annotations

import io
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from cornstalk.cli.waterfall import FIRST, NOTHING, READ, RUN, WAIT, Span, bar, spans, waterfall


def node(id: str, *times: float, outcome: str = "done") -> dict[str, Any]:
    names = ("published", "claimed", "started", "first", "ended")
    return {"id": id, "outcome": outcome, "times": {n: t for n, t in zip(names, times, strict=True) if t}}


TRACE = [
    node("ear#0/transcriber#0", 1000.4, 1000.5, 1000.5, 0.0, 1000.6),
    node("ear#0/encoder#0", 1000.0, 1000.1, 1000.2, 0.0, 1000.4),
    node("mind#0", 1000.6, 1000.6, 1000.6, 1000.8, 1001.0, outcome="failed"),
    node("voice#0", 1000.8, 0.0, 0.0, 0.0, 0.0, outcome=""),
]


def test_spans_are_relative_and_in_order_of_publishing() -> None:
    found = spans(TRACE)
    assert [s.name for s in found] == ["ear#0/encoder#0", "ear#0/transcriber#0", "mind#0"]
    assert round(found[0].wait, 6) == 0.1
    assert round(found[0].run, 6) == 0.2
    assert found[1].first < 0
    assert round(found[2].first, 6) == 0.8


def test_bars() -> None:
    encoder, transcriber, mind = spans(TRACE)
    assert bar(encoder, 1.0, 10) == WAIT + READ + RUN * 2 + NOTHING * 6
    assert bar(transcriber, 1.0, 10) == NOTHING * 4 + WAIT + RUN + NOTHING * 4
    assert bar(mind, 1.0, 10) == NOTHING * 6 + RUN * 2 + FIRST + RUN


def test_a_worker_whose_clock_is_behind_makes_no_negative_wait() -> None:
    [span] = spans([node("n#0", 1000.0, 999.9, 999.95, 0.0, 1000.1)])
    assert span.wait == 0
    assert span.published <= span.claimed <= span.started <= span.ended


def test_the_table_names_what_failed() -> None:
    console = Console(file=io.StringIO(), width=120)
    console.print(waterfall(TRACE, 120))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "mind#0 (failed)" in text
    assert "100.0" in text
    assert "voice" not in text


def test_no_nodes_no_bars() -> None:
    assert spans([]) == []
    Console(file=io.StringIO()).print(waterfall([], 80))


@given(st.lists(st.floats(0, 100), min_size=4, max_size=4).map(sorted), st.floats(0, 100), st.integers(1, 60))
def test_a_bar_has_its_width_whatever_the_times(times: list[float], first: float, width: int) -> None:
    published, claimed, started, ended = times
    span = Span("n", "done", published, claimed, started, first, ended)
    assert len(bar(span, max(ended, first), width)) == width
