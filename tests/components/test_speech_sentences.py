"""Sentences of a text that is still arriving: they add up to it, and do not depend on how it arrives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.generator.sentences import MAX_SENTENCE, Sentences
from tests.components.cuts import cut

TEXT = st.text(st.sampled_from("aB.!? \n”1"), max_size=60) | st.text(max_size=30)
LONG = st.text(st.sampled_from("aB. "), min_size=MAX_SENTENCE - 20, max_size=MAX_SENTENCE + 20)


def sentences(*pieces: str) -> list[str]:
    splitter = Sentences()
    done = [s for p in pieces for s in splitter.push(p)]
    return [s for s in (*done, splitter.end()) if s]


@given(TEXT | LONG, st.lists(st.integers(0, MAX_SENTENCE + 20), max_size=8))
def test_the_sentences_are_the_same_however_the_text_arrives(text: str, at: list[int]) -> None:
    assert sentences(*cut(text, at)) == sentences(text) == sentences(*text)


@given(TEXT | LONG)
def test_the_sentences_add_up_to_the_text_and_none_is_too_long(text: str) -> None:
    found = sentences(text)
    assert "".join(found) == text
    assert all(len(s) <= MAX_SENTENCE for s in found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Paris. It lies on the Seine.", ["Paris. ", "It lies on the Seine."]),
        ("Really?! “Yes.”  Good…\nThen go", ["Really?! ", "“Yes.”  ", "Good…\n", "Then go"]),
        ("Dr. Smith met J. Doe vs. Mr. X. They", ["Dr. Smith met J. Doe vs. Mr. X. They"]),
        ("It costs 3.14 euros. ok? No.", ["It costs 3.14 euros. ok? ", "No."]),
        ("a list\n- one\n\n- two", ["a list\n", "- one\n\n", "- two"]),
        ("", []),
    ],
)
def test_where_a_sentence_ends(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


def test_a_sentence_is_given_out_as_soon_as_the_next_one_begins() -> None:
    splitter = Sentences()
    assert [splitter.push(p) for p in ("Paris", ". ", "I")] == [[], [], ["Paris. "]]


def test_without_an_end_a_long_text_is_cut_at_white_space() -> None:
    assert all(s.endswith(" ") and len(s) > MAX_SENTENCE - 7 for s in sentences("seven chars, " * 200)[:-1])
    assert [len(s) for s in sentences("x" * 1000)] == [MAX_SENTENCE, MAX_SENTENCE, 200]
