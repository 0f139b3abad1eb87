"""The codec of WebSocket frames: whatever is sent comes out, whatever is no frame is said to be none."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cornstalk.frames import join
from gateway.frames import BadFrame, Cancel, Garbled, Input, InputEnd, Invoke, Ping, Resume, read, split

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
IDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=128)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
FRAMES = st.one_of(
    st.builds(
        Invoke,
        id=IDS,
        input=st.dictionaries(TEXT, JSON, max_size=3),
        open=st.lists(TEXT, max_size=2),
        options=st.dictionaries(TEXT, JSON, max_size=2),
    ),
    st.builds(Input, id=IDS, field=TEXT, data=TEXT | st.lists(JSON, max_size=3)),
    st.builds(InputEnd, id=IDS, field=TEXT),
    st.builds(Resume, id=IDS, request=TEXT, after=st.integers(0, 10**18 - 1), listen=st.booleans()),
    st.builds(Cancel, id=IDS),
    st.just(Ping()),
)


@given(FRAMES)
def test_a_text_frame_is_what_was_sent(frame: Any) -> None:
    assert read(msgspec.json.encode(frame).decode()) == frame
    assert read(json.dumps(msgspec.to_builtins(frame))) == frame


@given(IDS, TEXT, st.binary(max_size=200))
def test_a_binary_frame_is_what_was_sent(id: str, field: str, data: bytes) -> None:
    header = json.dumps({"type": "input", "id": id, "field": field}).encode()
    assert read(join(header, data)) == Input(id=id, field=field, data=data)
    assert split(join(header, data)) == (json.loads(header), data)


def is_frame_or_is_not(message: str | bytes) -> bool:
    try:
        read(message)
    except (Garbled, BadFrame):
        pass
    return True


@given(st.binary(max_size=60) | st.builds(join, st.binary(max_size=40), st.binary(max_size=10)))
@settings(max_examples=300)
def test_any_bytes_are_a_frame_or_none(message: bytes) -> None:
    assert is_frame_or_is_not(message)


@given(st.text(max_size=60) | JSON.map(json.dumps))
@settings(max_examples=300)
def test_any_text_is_a_frame_or_none(message: str) -> None:
    assert is_frame_or_is_not(message)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("", 1007),
        ("{", 1007),
        ("[1]", 1007),
        ("7", 1007),
        ("[" * 100_000, 1007),
        (b"", 1003),
        (b"\0", 1003),
        (b"\0\2[]", 1003),
        (b"\0\5{}", 1003),
        (b"\0\2\xff\xff", 1003),
        (b"\xff\xff" + b"x" * 100, 1003),
    ],
)
def test_what_cannot_be_read_closes(message: str | bytes, code: int) -> None:
    with pytest.raises(Garbled) as caught:
        read(message)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("frame", "id", "says"),
    [
        ({"type": "nothing", "id": "a"}, "a", "nothing"),
        ({"id": "a"}, "a", "type"),
        ({"type": ["ping"], "id": "a"}, "a", "type"),
        ({"type": "invoke"}, "", "id"),
        ({"type": "invoke", "id": ""}, "", "id"),
        ({"type": "invoke", "id": "x" * 129}, "", "id"),
        ({"type": "invoke", "id": 7}, "", "id"),
        ({"type": "invoke", "id": "a", "input": []}, "a", "input"),
        ({"type": "invoke", "id": "a", "open": "text"}, "a", "open"),
        ({"type": "invoke", "id": "a", "optoins": {}}, "a", "optoins"),
        ({"type": "resume", "id": "a"}, "a", "request"),
        ({"type": "resume", "id": "a", "request": "r", "after": -1}, "a", "after"),
        ({"type": "resume", "id": "a", "request": "r", "after": "3"}, "a", "after"),
        ({"type": "input", "id": "a", "data": "x"}, "a", "field"),
        ({"type": "ping", "id": "a"}, "a", "id"),
    ],
)
def test_a_wrong_frame_says_what_and_whose(frame: dict[str, Any], id: str, says: str) -> None:
    with pytest.raises(BadFrame, match=says) as caught:
        read(json.dumps(frame))
    assert caught.value.id == id


@pytest.mark.parametrize(
    "header", [{"type": "cancel", "id": "a"}, {"type": "input", "id": "a", "field": "f", "data": 1}]
)
def test_only_input_is_binary(header: dict[str, Any]) -> None:
    with pytest.raises(BadFrame) as caught:
        read(join(json.dumps(header).encode(), b"x"))
    assert caught.value.id == "a"


def test_a_header_has_a_bound() -> None:
    with pytest.raises(ValueError, match="65536"):
        join(b" " * 65536, b"")
