"""The waterfall, from fixed traces."""

from __future__ import annotations

import io
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from cornstalk.cli.spans import Part, Span, causes, timeline
from cornstalk.cli.waterfall import FIRST, MARKS, NOTHING, bar, waterfall
from tests.cli.traces import GOOD, failed, node, view

NOW = 2000.0
WAIT, READ, RUN, OPEN = (MARKS[kind] for kind in ("wait", "read", "run", "open"))


def drawn(trace: dict[str, Any]) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(waterfall(timeline(trace, NOW), 120))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def test_spans_begin_with_the_request_and_are_in_order_of_publishing() -> None:
    line = timeline(GOOD, NOW)
    assert (line.zero, line.total) == (1000.0, 1.0)
    assert [s.name for s in line.spans] == ["ear#0/encoder#0", "ear#0/transcriber#0", "mind#0"]
    encoder, transcriber, mind = line.spans
    assert [round(x or 0, 6) for x in (encoder.wait, encoder.read, encoder.run)] == [0.1, 0.1, 0.2]
    assert transcriber.first is None
    assert round(mind.first or 0, 6) == 0.8


def test_bars() -> None:
    encoder, transcriber, mind = timeline(GOOD, NOW).spans
    assert bar(encoder, 1.0, 10) == WAIT + READ + RUN * 2 + NOTHING * 6
    assert bar(transcriber, 1.0, 10) == NOTHING * 4 + WAIT + RUN + NOTHING * 4
    assert bar(mind, 1.0, 10) == NOTHING * 6 + RUN * 2 + FIRST + RUN


def test_a_worker_whose_clock_is_behind_makes_no_negative_wait() -> None:
    [span] = timeline(view(node("n#0", 1000.0, 1000.0, 999.9, 999.95, 0.0, 1000.1)), NOW).spans
    assert span.wait == 0
    assert span.published <= span.claimed <= span.started <= span.ended


def test_a_failure_is_drawn_from_what_is_known_and_names_its_cause() -> None:
    line = timeline(failed(), NOW)
    assert [s.label for s in line.spans] == [
        "eye#0 (lost)",
        "eye#0 (run 2)",
        "voice#0",
        "mind#0 (failed, 2 restarts)",
    ]
    lost, again, waits, broken = line.spans
    assert bar(broken, 1.0, 10) == NOTHING * 3 + OPEN * 4 + NOTHING * 3
    assert broken.wait is broken.run is None
    assert waits.parts == ()
    assert bar(lost, 1.0, 10) == OPEN + NOTHING * 9
    assert again.run is not None
    told = causes(failed(), line.spans)
    assert told[0].startswith("eye#0 (lost): its output was gone when it was needed")
    assert told[1] == "mind#0 (failed, 2 restarts): asked <b>to</b> fail [asked_to_fail] (app.py:7, null-x, w-1)"
    assert told[2] == "request failed: asked <b>to</b> fail [asked_to_fail]"
    assert "mind#0 (failed, 2 restarts)" in drawn(failed())


def test_what_could_not_be_read_is_named() -> None:
    lost = {"gen": 0, "restarts": 0, "outcome": "lost", "times": {}, "vanished": [{"node": "eye0", "gen": 0}]}
    trace = view(node("mind#0", 1000.0, 1000.1, 1000.1, 1000.1, 0.0, 1000.2, gen=1, earlier=[lost]))
    assert causes(trace, timeline(trace, NOW).spans) == [
        "mind#0 (lost): could not read eye0 (run 1) (app.py:7, null-x)"
    ]


def test_a_running_request_goes_on_to_now() -> None:
    running = node("n#0", 1000.0, 0.0, 0.0, 0.0, 1000.5, 0.0, outcome="")
    running["times"]["ready"] = 1000.0
    line = timeline(view(running, status="running"), 1002.0)
    assert line.total == 2.0
    [span] = line.spans
    assert span.parts == (Part("open", 0.0, 2.0),)
    assert bar(span, line.total, 8) == OPEN * 2 + FIRST + OPEN * 5


def test_figures_of_the_table() -> None:
    head, *rows = drawn(GOOD).splitlines()
    assert head.split()[-5:] == ["QUEUE", "FETCH", "RUN", "FIRST", "CHUNKS"]
    figures = {row.split()[0]: row.split()[-5:] for row in rows}
    assert figures["mind#0"] == ["0.0", "0.0", "400.0", "800.0", "15"]
    assert figures["ear#0/encoder#0"][-3:] == ["100.0", "100.0", "200.0"]


def test_no_nodes_no_bars() -> None:
    assert timeline(view(), NOW).spans == []
    assert "NODE" in drawn(view())
    assert timeline(view(status="running"), 1000.5).total == 0.5


@given(st.lists(st.floats(0, 100), min_size=4, max_size=4).map(sorted), st.floats(0, 100), st.integers(1, 60))
def test_a_bar_has_its_width_whatever_the_times(times: list[float], first: float, width: int) -> None:
    published, claimed, started, ended = times
    parts = (Part("wait", published, claimed), Part("read", claimed, started), Part("run", started, ended))
    span = Span("n", "done", published, claimed, started, ended, first, parts)
    assert len(bar(span, max(ended, first), width)) == width
