"""The parser of server-sent events."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from cornstalk.client.sse import Parser, SentEvent

LINE = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), max_size=12)
EVENTS = st.lists(
    st.builds(
        SentEvent,
        st.sampled_from(["chunk", "end", "error"]),
        st.one_of(st.just(""), st.integers(1, 10**6).map(str)),
        st.lists(LINE, min_size=1, max_size=3).map("\n".join),
    ),
    max_size=5,
)
NEWLINE = st.sampled_from(["\n", "\r\n", "\r"])


def written(events: list[SentEvent], newline: str) -> bytes:
    lines = []
    for event in events:
        lines += [": ping", f"event: {event.kind}"]
        lines += [f"id: {event.id}"] if event.id else []
        lines += [f"data: {line}" for line in event.data.split("\n")] + [""]
    return newline.join([*lines, ""]).encode()


def parsed(pieces: list[bytes]) -> list[SentEvent]:
    parser = Parser()
    return [event for piece in pieces for event in parser.feed(piece)]


@given(EVENTS, NEWLINE, st.data())
def test_any_split_of_the_bytes_gives_the_same_events(
    events: list[SentEvent], newline: str, data: st.DataObject
) -> None:
    stream = written(events, newline) + b": the end\n"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    edges = [0, *cuts, len(stream)]
    pieces = [stream[a:b] for a, b in pairwise(edges)]
    assert parsed(pieces) == parsed([stream]) == events


@given(EVENTS, NEWLINE)
def test_byte_by_byte(events: list[SentEvent], newline: str) -> None:
    stream = written(events, newline) + b": the end\n"
    assert parsed([stream[i : i + 1] for i in range(len(stream))]) == events


def test_an_event_that_was_cut_off_is_not_given_out() -> None:
    assert parsed([b"event: chunk\nid: 7\ndata: {}\n"]) == []


def test_defaults_comments_and_unknown_fields() -> None:
    stream = "\ufeff: hello\nretry: 10\ncolour: red\ndata:no space\n\ndata: second\n\n".encode()
    assert parsed([stream]) == [SentEvent("message", "", "no space"), SentEvent("message", "", "second")]


def test_an_event_without_data_is_none() -> None:
    assert parsed([b"event: end\n\n"]) == []
