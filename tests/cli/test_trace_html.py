"""The page of a trace: whole by itself, safe whatever an error says, and to scale."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from cornstalk.cli.spans import timeline
from cornstalk.cli.trace_html import page
from tests.cli.traces import GOOD, REQUEST, failed, node, view


class Page(HTMLParser):
    """Text, elements and attributes; checks that every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def drawn(trace: dict[str, Any], now: float = 2000.0) -> str:
    return page(trace, timeline(trace, now))


@pytest.mark.parametrize("trace", [GOOD, failed(), view(), view(status="running")])
def test_it_needs_nothing_but_itself(trace: dict[str, Any]) -> None:
    text = drawn(trace)
    found = Page(text)
    assert {tag for tag, _ in found.elements}.isdisjoint({"script", "link", "img", "iframe", "object", "a"})
    assert not any(name in ("src", "href") for _, attrs in found.elements for name in attrs)
    assert "http://" not in text
    assert "https://" not in text
    assert "@import" not in text
    assert REQUEST in found.text


def test_what_an_error_says_is_text() -> None:
    text = drawn(failed())
    assert "<b>to</b>" not in text
    assert "asked <b>to</b> fail [asked_to_fail]" in Page(text).text


def test_bars_are_to_scale() -> None:
    text = drawn(GOOD)
    shares = re.findall(r'class="(wait|read|run)" style="left:([\d.]+)%;width:([\d.]+)%"', text)
    assert [(kind, float(left), float(width)) for kind, left, width in shares] == [
        ("wait", 0.0, 10.0),
        ("read", 10.0, 10.0),
        ("run", 20.0, 20.0),
        ("wait", 40.0, 10.0),
        ("run", 50.0, 10.0),
        ("run", 60.0, 40.0),
    ]
    assert 'class="first" style="left:80.000%"' in text


def test_details_name_what_a_node_needs_and_how_it_failed() -> None:
    assert "<dt>needs</dt><dd>ear#0/encoder#0</dd>" in drawn(GOOD)
    assert "<dt>pieces</dt><dd>12 of text, 3 of sound</dd>" in drawn(GOOD)
    assert '<details class="failed">' in drawn(failed())
    assert "<dt>restarts</dt><dd>2</dd>" in drawn(failed())
    usage = {"run_s": 0.1, "tokens_in": 3, "tokens_out": 4, "tensor_bytes": 2_304_000}
    text = drawn(view(node("n#0", 1000.0, 1000.0, 1000.0, 1000.0, 0.0, 1000.1, usage=usage)))
    assert "<dd>3, 4</dd>" in text
    assert "<dd>2,304,000</dd>" in text


@pytest.mark.parametrize("total", [1e-4, 0.003, 0.9, 1.0, 7.0, 61.0, 86_400.0])
def test_the_axis_has_a_few_round_marks(total: float) -> None:
    trace = view(status="running")
    marks = re.findall(r'<code style="left:[\d.]+%">([^<]+)</code>', drawn(trace, 1000.0 + total))
    assert 3 <= len(marks) <= 9
    assert marks[0] == "0"
