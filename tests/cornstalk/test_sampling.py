"""What a call of an LLM takes, and what it refuses before anything is stored."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from cornstalk.blame import failure
from cornstalk.errors import BadInput
from cornstalk.record import Pass
from cornstalk.task import CompositeTask
from cornstalk.tasks import LLM, MultimodalLLM, Sampling
from cornstalk.tasks.seeing import Sight
from cornstalk.types import field_type, make_port

OUT_OF_RANGE: list[dict[str, Any]] = [
    {"max_tokens": 0},
    {"stop": [""]},
    {"stop": ["x"] * 17},
    {"temperature": -0.1},
    {"temperature": float("nan")},
    {"temperature": 10.1},
    {"top_p": 0.0},
    {"top_p": 1.5},
    {"top_k": -1},
    {"min_p": -0.1},
    {"repetition_penalty": 0.0},
    {"repetition_penalty": float("inf")},
    {"presence_penalty": 2.5},
    {"frequency_penalty": -2.5},
    {"seed": -1},
    {"seed": 2**64},
]


class Ask(CompositeTask):
    mind = LLM()

    def invoke(self, inputs: dict[str, Any]) -> Any:
        return self.mind(prompt="Say hello.", **inputs).text


def run(inputs: dict[str, Any]) -> tuple[Any, Pass]:
    one = Pass([], {})
    return one.run(Ask(), inputs), one


@pytest.mark.parametrize("inputs", OUT_OF_RANGE)
def test_a_value_out_of_its_range_is_refused_at_the_call(inputs: dict[str, Any]) -> None:
    outcome, one = run(inputs)
    (name,) = inputs
    assert isinstance(outcome.error, (BadInput, TypeError))
    if inputs != {"seed": 2**64}:  # no int of a message
        assert isinstance(outcome.error, BadInput)
        assert outcome.error.field == name
        assert failure(outcome.error).code == "bad_input"
    assert not one.new_nodes


@pytest.mark.parametrize("inputs", OUT_OF_RANGE)
def test_and_at_the_door_if_the_request_says_that_it_is_one(inputs: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Sampling(**inputs)
    with pytest.raises(ValidationError):
        Sight(prompt="What is this?", **inputs)


def test_a_value_of_another_type_is_a_mistake_of_the_app() -> None:
    outcome, _ = run({"temperature": "hot"})
    assert isinstance(outcome.error, TypeError)
    assert "temperature: expected float, got str" in str(outcome.error)


@pytest.mark.parametrize(
    "inputs",
    [
        {"temperature": 1},
        {"temperature": 10.0, "top_p": 1e-9, "top_k": 0, "min_p": 1.0},
        {"seed": 2**64 - 1},
        {"seed": None},
    ],
)
def test_the_edges_of_the_ranges_are_inside(inputs: dict[str, Any]) -> None:
    outcome, one = run(inputs)
    assert outcome.error is None
    assert len(one.new_nodes) == 1


def test_a_request_has_the_fields_that_the_call_takes() -> None:
    for name, declared in Sampling.model_fields.items():
        taken, asked = LLM.inputs[name], make_port(name, field_type(declared))
        assert taken.adapter.json_schema() == asked.adapter.json_schema()
        assert taken.default == declared.default


def test_what_a_request_says_is_what_the_call_gets() -> None:
    said = Sight(prompt="Say hello.", temperature=0.5, top_k=3, stop=["."], seed=5)
    one = Pass([], {})
    one.run(MultimodalLLM(LLM(model="/models/any")), said)
    (node,) = one.new_nodes
    assert {n: node.inputs[n] for n in Sampling.model_fields} == said.sampling()


def test_a_value_that_is_not_known_yet_is_left_to_the_engine() -> None:
    class Twice(Ask):
        def invoke(self, inputs: dict[str, Any]) -> Any:
            return self.mind(prompt="Say hello.", max_tokens=self.mind(prompt="How long?").tokens).text

    one = Pass([], {})
    assert one.run(Twice(), {}).error is None
    assert len(one.new_nodes) == 2
