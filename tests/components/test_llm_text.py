"""Stop strings and text said again: nothing depends on how the text was cut into pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.llm.text import Stops, Unsaid
from cornstalk.errors import LineageDiverged
from tests.components.cuts import cut

ABC = st.text("ab ", max_size=30)
STOPS = st.lists(st.text("ab ", min_size=1, max_size=4), max_size=3)


def stopped(pieces: list[str], stops: list[str]) -> tuple[str, bool]:
    scanner = Stops(stops)
    said = "".join(scanner.push(p) for p in pieces)
    return said + scanner.end(), scanner.hit


@given(ABC, STOPS, st.lists(st.integers(0, 30), max_size=8))
def test_the_text_ends_before_the_first_stop_string_however_it_was_cut(
    text: str, stops: list[str], at: list[int]
) -> None:
    ends = [(text.index(s) + len(s), text.index(s)) for s in stops if s in text]
    assert stopped(cut(text, at), stops) == ((text[: min(ends)[1]], True) if ends else (text, False))


@given(ABC, STOPS)
def test_what_was_let_through_is_never_taken_back(text: str, stops: list[str]) -> None:
    scanner, said = Stops(stops), ""
    whole = stopped([text], stops)[0]
    for letter in text:
        said += scanner.push(letter)
        assert whole.startswith(said)


def test_without_stop_strings_nothing_is_held_back() -> None:
    assert Stops([]).push("word") == "word"


def test_only_the_possible_beginning_of_a_stop_string_is_held_back() -> None:
    assert Stops(["\n\n"]).push("line\n") == "line"


@given(st.text(max_size=30), st.integers(0, 30), st.lists(st.integers(0, 30), max_size=8))
def test_stored_text_and_new_text_add_up(text: str, told: int, at: list[int]) -> None:
    unsaid = Unsaid(text[:told])
    new = "".join(unsaid.push(p) for p in cut(text, at))
    unsaid.end()
    assert text[:told] + new == text


def test_other_text_than_the_stored_one_is_noticed() -> None:
    unsaid = Unsaid("Paris is")
    assert unsaid.push("Par") == ""
    with pytest.raises(LineageDiverged):
        unsaid.push("ks")


def test_a_text_that_ends_before_the_stored_one_is_noticed() -> None:
    unsaid = Unsaid("Paris is")
    unsaid.push("Paris")
    with pytest.raises(LineageDiverged):
        unsaid.end()
