"""Structs and extension values survive their form on the wire, and request data cannot forge them."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cornstalk.messages import (
    Edge,
    End,
    Extension,
    Graph,
    Malformed,
    NewerVersion,
    Node,
    Ref,
    StreamRef,
    Upload,
    decode,
    decode_value,
    encode,
    extensions,
    substitute,
)

NAMES = st.text("abcdefgh", min_size=1, max_size=8)
EXTENSIONS = st.one_of(
    st.builds(Edge, NAMES, NAMES, st.booleans()),
    st.builds(StreamRef, NAMES, NAMES, st.integers(0, 9), NAMES),
    st.builds(Upload, NAMES, st.integers(0, 2**40), NAMES),
)
PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=9) | st.binary(max_size=9)
VALUES = st.recursive(
    PLAIN | EXTENSIONS, lambda v: st.lists(v, max_size=3) | st.dictionaries(NAMES, v, max_size=3), max_leaves=9
)
REF = Ref("r", "n", 0, "a", "out", 0, "local", "epoch", 1, 4096, 8, "float32", (1, 2))


@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_extensions_stand_at_any_depth(inputs: dict[str, Any]) -> None:
    graph = Graph(index=0, nodes=(Node(id="i", token="t", component="c", inputs=inputs),))
    assert decode(Graph, encode(graph)) == graph


@given(VALUES)
def test_substitute_touches_extensions_only(value: Any) -> None:
    found = extensions(value)
    assert extensions(substitute(value, lambda _: None)) == []
    assert encode(substitute(value, lambda e: e)) == encode(value)
    assert all(isinstance(e, Extension) for e in found)


def test_request_data_cannot_forge_an_extension() -> None:
    for forged in (["n", "out", True], {"node": "n", "output": "out", "stream": True}):
        plain = msgspec.msgpack.decode(
            msgspec.json.decode(msgspec.json.encode(msgspec.msgpack.encode(forged)), type=bytes)
        )
        assert extensions(decode_value(encode({"x": plain}))) == []


def test_extensions_are_values() -> None:
    assert decode_value(encode(REF)) == REF
    assert REF.replace(offset=0) != REF
    assert copy.deepcopy(REF) is REF
    with pytest.raises(AttributeError):
        REF.offset = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        Edge("n", "o")  # type: ignore[call-arg]


@given(st.binary(max_size=64))
def test_any_bytes_are_a_message_or_a_typed_error(data: bytes) -> None:
    try:
        decode(End, data)
    except (Malformed, NewerVersion):
        pass


def test_an_unknown_extension_type_is_malformed() -> None:
    data = msgspec.msgpack.encode({"index": 0, "nodes": [msgspec.msgpack.Ext(99, b"")]})
    with pytest.raises(Malformed):
        decode(Graph, data)


def test_a_newer_version_is_handed_back_even_if_it_does_not_fit() -> None:
    with pytest.raises(NewerVersion):
        decode(Graph, encode({"v": 2, "index": "not a number any more"}))
    with pytest.raises(NewerVersion):
        decode(Graph, encode({"v": 2, "index": 1}))


def test_unknown_fields_are_ignored() -> None:
    assert decode(Graph, encode({"index": 3, "of_a_later_release": [1]})) == Graph(index=3)
