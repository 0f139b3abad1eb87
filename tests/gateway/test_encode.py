"""Values as clients get them: JSON that says what they are, and that a model of the same fields takes back."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from cornstalk.messages import Error, Upload
from gateway.encode import to_json


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"a": None, "b": [None, 1.5, "null"]}, {"a": None, "b": [None, 1.5, "null"]}),
        (float("nan"), "NaN"),
        ([float("inf"), (-float("inf"),), {"deep": float("nan")}], ["Infinity", ["-Infinity"], {"deep": "NaN"}]),
        (
            {1: b"\xff", "upload": Upload("d" * 64, 1, "image/png"), "no": float("nan")},
            {"1": "/w==", "upload": {"upload": "d" * 64}, "no": "NaN"},
        ),
        ([Error(code="c", message="m"), float("inf")], [{"code": "c", "message": "m"}, "Infinity"]),
    ],
)
def test_what_is_no_number_has_its_name(value: Any, said: Any) -> None:
    assert json.loads(to_json(value)) == said


def test_what_has_no_form_is_told_whatever_stands_beside_it() -> None:
    for value in (object(), [None, object()]):
        with pytest.raises(TypeError, match="cannot be told"):
            to_json(value)


class Numbers(BaseModel):
    one: float
    maybe: float | None
    many: list[float]


@given(
    st.builds(Numbers, one=st.floats(), maybe=st.none() | st.floats(), many=st.lists(st.floats(width=32), max_size=4))
)
def test_a_model_takes_back_what_was_said(numbers: Numbers) -> None:
    def same(a: float | None, b: float | None) -> bool:
        return a == b or (a is not None and b is not None and math.isnan(a) and math.isnan(b))

    found = Numbers.model_validate(json.loads(to_json(numbers.model_dump())))
    assert same(found.one, numbers.one)
    assert same(found.maybe, numbers.maybe)
    assert all(map(same, found.many, numbers.many))
