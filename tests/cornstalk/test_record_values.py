"""Arguments and results: snapshots, references, declared types, and what may travel."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import re
import uuid
from collections import Counter, OrderedDict
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from pydantic import BaseModel, Field, RootModel

from cornstalk import CompositeTask, Stream, Tensor, UnitTask, Upload, wait
from cornstalk.errors import EngineError, RecordError
from cornstalk.messages import Edge, Graph, Ref, decode, decode_value, encode
from cornstalk.record import Pass, Result
from cornstalk.types import Audio, Pcm, make_port
from cornstalk.values import check_outputs, check_piece, compatible
from tests.cornstalk.model.apps import LLM, Echo, Eye, Mood, Person, Voice, composite, run


class Chat(BaseModel):
    messages: list[str]
    upload: Upload | None = None


# ------------------------------------------------------------ snapshots


def test_changing_the_request_lasts_one_pass() -> None:
    def invoke(self, q):
        q.messages.insert(0, "sys")
        a = self.echo(x=q.messages).s
        q.messages.append(a)
        if len(a) > 3:
            q.messages.append("more")
        return self.echo(x=q.messages).s, q.messages

    request = Chat(messages=["hi"])
    result, driver, _ = run(composite(invoke), request)
    assert request.messages == ["hi"]
    assert result[1] == ["sys", "hi", "['sys', 'hi']", "more"]
    assert driver.passes == 3


def test_an_argument_is_a_snapshot_and_a_known_value_is_a_copy() -> None:
    def invoke(self, q):
        words = self.echo(x="a b").l
        words.append("c")
        first = self.echo(x=words)
        words.append("d")
        second = self.echo(x=words)
        return first.s, second.s, self.echo(x=words[0]).s

    assert run(composite(invoke))[0] == ("['a', 'b', 'c']", "['a', 'b', 'c', 'd']", "a")


def test_user_data_cannot_forge_a_reference() -> None:
    def invoke(self, q):
        self.echo(x="secret")
        return self.echo(x=q).s

    first = Pass([], {})
    first.run(composite(lambda self, q: self.echo(x="secret").s), "q")
    token = first.new_nodes[0].token
    assert "secret" not in run(composite(invoke), {"$ref": [token, "s"], "Edge": [token, "s", False]})[0]
    with pytest.raises(TypeError, match="a Edge cannot travel"):
        run(composite(invoke), Edge(token, "s", False))


def test_numbers_are_told_apart_as_msgpack_does() -> None:
    def invoke(self, q):
        return self.echo(x=next(q)).s

    def outcome(one, two):
        log = Pass([], {})
        log.run(composite(invoke), [one].__iter__())
        return Pass(log.new_nodes, {}).run(composite(invoke), [two].__iter__()).kind

    assert outcome(1, True) == outcome(1, 1.0) == "raise"
    assert outcome(float("nan"), float("nan")) == outcome((1, 2), [1, 2]) == "done"


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        ((1, [2, (3,)]), [1, [2, [3]]]),
        ({Mood.GLAD: {"b", "a"}}, {"glad": ["a", "b"]}),
        (Counter("aab"), {"a": 2, "b": 1}),
        (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (Person(name="n", age=1), {"name": "n", "age": 1}),
        (RootModel[list[int]]([1]), [1]),
        (enum.Enum("E", {"A": 5}).A, 5),
        (np.float64(1.5), 1.5),
        (bytearray(b"x"), b"x"),
        (type("S", (str,), {})("s"), "s"),
        (True, True),
        (None, None),
        (Upload("d", 3, "audio/wav"), Upload("d", 3, "audio/wav")),
        (uuid.UUID(int=5), "00000000-0000-0000-0000-000000000005"),
    ],
)
def test_what_travels_becomes_plain_data(value: Any, sent: Any) -> None:
    log = Pass([], {})
    outcome = log.run(composite(lambda self, q: self.echo(x=value).s), "q")
    assert outcome.kind == "done"
    stored = decode(Graph, encode(Graph(index=0, nodes=log.new_nodes)))
    assert stored.nodes[0].inputs == {"x": sent}
    assert Pass(stored.nodes, {}).run(composite(lambda self, q: self.echo(x=value).s), "q").kind == "done"


@pytest.mark.parametrize(
    "value",
    [object(), print, np.zeros(3), 2**64, -(2**63) - 1, {(1, 2): 3}, "\ud800", dataclasses.make_dataclass("D", "a")(1)],
)
def test_what_cannot_travel_is_a_type_error_at_the_users_line(value: Any) -> None:
    def invoke(self, q):
        return self.echo(x=[value]).s

    with pytest.raises(TypeError) as error:
        run(composite(invoke))
    assert any(entry.frame.code.name == "invoke" for entry in error.traceback)


def test_a_whole_result_is_not_an_argument() -> None:
    with pytest.raises(TypeError, match=r"echo#0 is the whole result of a call; read one of its outputs: \.s"):
        run(composite(lambda self, q: self.echo(x=self.echo(x=1)).s))


def test_long_known_values_are_references_short_ones_travel_inline() -> None:
    def invoke(self, q):
        s = wait(self.echo(x=q).s)
        return self.echo(x={"deep": [s]}).s

    for request, inline in (("short", True), ("x" * 32, False)):
        _, driver, _ = run(composite(invoke), request)
        first, second = driver.store.log()[0]
        want = request if inline else Edge(first.token, "s", False)
        assert second.inputs == {"x": {"deep": [want]}}


# ------------------------------------------------------------ declared types


class Strict(UnitTask):
    class Out(BaseModel):
        audio: Stream[Audio]
        n: int
        words: list[str]

    def __call__(
        self,
        *,
        prompt: str = "",
        n: int = 0,
        f: float = 0.0,
        words: list[str] = [],  # noqa: B006
        pair: tuple[int, str] = (0, ""),
        person: Person | None = None,
        images: list[Tensor] = [],  # noqa: B006
        level: Literal["low", "high"] = "low",
        when: datetime.datetime | None = None,
        sound: Stream[Audio] = b"",
        file: Upload | None = None,
    ) -> Out:
        raise NotImplementedError


def strict(**inputs: Any) -> Pass:
    task = composite(lambda self, q: self.strict(**inputs).n + 1, strict=Strict())
    run_ = Pass([], {})
    outcome = run_.run(task, "q")
    if outcome.error is not None:
        raise outcome.error
    return run_


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"prompt": 5}, "Strict: prompt: expected str, got int"),
        ({"prompt": None}, "Strict: prompt: expected str, got NoneType"),
        ({"n": "5"}, "Strict: n: expected int, got str"),
        ({"n": True}, "Strict: n: expected int, got bool"),
        ({"words": ["a", 5]}, r"Strict: words: expected list\[str\], got list \(\[1\]"),
        ({"pair": (1, 2)}, "Strict: pair: expected tuple"),
        ({"level": "mid"}, r"Strict: level: expected Literal\['low', 'high'\], got str"),
        ({"images": ["x"]}, "Strict: images"),
        ({"file": b"bytes"}, "Strict: file"),
        ({"promt": "x"}, "Strict has no input 'promt'; it takes prompt, n"),
    ],
)
def test_a_literal_of_the_wrong_type_is_named_at_the_call(inputs: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        strict(**inputs)


@pytest.mark.parametrize(
    "inputs",
    [
        {"prompt": "x", "n": 1, "f": 1},
        {"words": ("a", "b")},
        {"pair": [1, "b"]},
        {"person": Person(name="n", age=1)},
        {"person": {"name": "n", "age": 1}},
        {"level": "high"},
        {"when": datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)},
        {"file": Upload("d", 1, "audio/wav")},
        {"sound": b"1234"},
        {},
    ],
)
def test_literals_of_the_right_type_pass(inputs: dict[str, Any]) -> None:
    assert set(strict(**inputs).new_nodes[0].inputs) == set(Strict.inputs)  # defaults are filled in


def test_a_missing_input() -> None:
    with pytest.raises(TypeError, match="LLM: input 'prompt' is missing"):
        run(composite(lambda self, q: self.brain().text))


class Edges(CompositeTask):
    strict, echo, brain, eye, voice = Strict(), Echo(), LLM(), Eye(), Voice()

    def __init__(self, inputs):
        object.__setattr__(self, "make", inputs)

    def invoke(self, q):
        self.strict(**self.make(self))
        return "sent"


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (lambda t: {"prompt": t.echo(x=1).n}, r"prompt: expected str, got int \(echo#0\.n\)"),
        (lambda t: {"prompt": t.eye(image="x").emb}, "prompt: expected str, got Tensor"),
        (lambda t: {"n": t.brain(prompt="x").text}, r"n: expected int, got str \(brain#0\.text\)"),
        (lambda t: {"words": [t.echo(x=1).s, t.echo(x=1).n]}, r"words: expected list\[str\]"),
        (lambda t: {"words": t.echo(x=1).d}, r"words: expected list\[str\], got dict\[str, int\]"),
        (lambda t: {"images": [t.echo(x=1).s]}, "images: expected list"),
        (lambda t: {"person": t.echo(x=1).d}, "person: expected"),
        (lambda t: {"pair": (t.echo(x=1).n, 5)}, "pair: expected tuple"),
    ],
)
def test_a_reference_of_the_wrong_type_is_named_at_the_call(inputs, message: str) -> None:
    caught = []

    class Catching(Edges):
        def invoke(self, q):
            try:
                return super().invoke(q)
            except TypeError as error:
                caught.append(str(error))

    Pass([], {}).run(Catching(inputs), "q")
    assert re.search(message, caught[0])


def test_a_wrong_type_ends_the_request_when_all_is_known() -> None:
    with pytest.raises(TypeError, match="Strict: prompt: expected str, got int"):
        run(composite(lambda self, q: self.strict(prompt=self.echo(x=1).n).n, strict=Strict(), echo=Echo()))


@pytest.mark.parametrize(
    "inputs",
    [
        lambda t: {"prompt": t.brain(prompt="x").text, "n": t.echo(x=1).n, "f": t.echo(x=1).n},
        lambda t: {"words": [t.echo(x=1).s, "b", t.brain(prompt="x").text]},
        lambda t: {"words": t.echo(x=1).l},
        lambda t: {"words": (t.echo(x=1).s,)},
        lambda t: {"pair": (t.echo(x=1).n, t.echo(x=1).s)},
        lambda t: {"person": t.echo(x=1).m},
        lambda t: {"images": [t.eye(image="x").emb]},
        lambda t: {"sound": t.strict().audio},
    ],
)
def test_references_of_the_right_type_pass(inputs) -> None:
    assert Pass([], {}).run(Edges(inputs), "q").value == "sent"


@pytest.mark.parametrize(
    ("given", "wanted", "fits"),
    [
        (str, str, True),
        (str, Any, True),
        (Any, int, True),
        (int, float, True),
        (float, int, False),
        (bool, int, True),
        (str, str | None, True),
        (str | None, str, False),
        (list[str], list[Any], True),
        (list[int], list[str], False),
        (list, list[str], True),
        (dict[str, int], dict[str, float], True),
        (tuple[int, ...], tuple[int, ...], True),
        (Literal["a"], str, True),
        (str, Literal["a"], False),
        (Person, BaseModel, True),
        (BaseModel, Person, False),
        (Audio, bytes, True),
        (bytes, Audio, True),
        (Audio, str, False),
    ],
)
def test_compatible_types(given: Any, wanted: Any, fits: bool) -> None:
    assert compatible(given, wanted) is fits


@pytest.mark.parametrize(
    ("declared", "kind"),
    [
        (str, str),
        (bytes, bytes),
        (int, int),
        (float, float),
        (list[str], list),
        (tuple[int, str], tuple),
        (dict[str, int], dict),
        (Person, Person),
        *[(hint, None) for hint in (bool, str | None, int | str, Mood, Literal["a", "b"], Any, set[str])],
        *[(hint, None) for hint in (datetime.datetime, datetime.date, uuid.UUID)],
    ],
)
def test_what_may_be_told_apart_by_identity_is_waited_for_when_read(declared: Any, kind: type | None) -> None:
    pending = make_port("x", declared).pending
    assert (pending and pending.__name__) == (kind and f"Pending[{kind.__name__}]")


def test_audio_of_another_rate_does_not_fit() -> None:
    assert not compatible(Annotated[bytes, Pcm(16_000)], Audio)
    port = make_port("sound", Stream[Audio])
    assert (port.kind, port.pcm, port.exact) == ("stream", Pcm(24_000), bytes)


# ------------------------------------------------------------ results


class Rich(UnitTask):
    class Out(BaseModel):
        when: datetime.datetime
        pair: tuple[int, str]
        tags: set[str]
        person: Person
        named: dict[str, Person] = Field(default={})
        anything: Any

    def __call__(self) -> Out:
        raise NotImplementedError


RICH = {
    "when": datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
    "pair": (1, "a"),
    "tags": {"b", "a"},
    "person": {"name": "n", "age": "3"},
    "named": {"x": Person(name="y", age=1)},
    "anything": [[1]],
}


def test_results_are_of_the_declared_type_again_after_their_journey() -> None:
    stored = decode_value(encode(check_outputs(Rich(), RICH)))

    def invoke(self, q):
        r = self.rich()
        r.anything[0].append(2)
        return wait(r.when), wait(r.pair), r.tags, wait(r.person), wait(r.named), r.anything

    task = composite(invoke, rich=Rich())
    log = Pass([], {})
    log.run(task, "q")
    results = {log.new_nodes[0].token: Result(1, stored)}
    for _ in range(2):  # what a pass changes dies with it
        value = Pass(log.new_nodes, results).run(task, "q").value
        assert value[0] == RICH["when"]
        assert value[1:3] == ((1, "a"), {"a", "b"})
        assert value[3:] == (Person(name="n", age=3), {"x": Person(name="y", age=1)}, [[1, 2]])


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({"n": None, "words": []}, "output 'n': expected int, got NoneType"),
        ({"n": 1, "words": "ab"}, r"output 'words': expected list\[str\], got str"),
        ({"n": 1}, "did not give output 'words'"),
        ({"n": 1, "words": [], "audio": b""}, "gave 'audio', which is not one of its value outputs"),
        ({"n": 2**70, "words": []}, "output 'n'"),
    ],
)
def test_an_engine_that_gives_the_wrong_type_is_named(outputs: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineError, match=message) as error:
        check_outputs(Strict(), outputs)
    assert error.value.to_message().code == "bad_output"
    assert str(error.value).startswith("task-strict-")


def test_pieces_of_streams_are_checked() -> None:
    assert check_piece(Strict(), "audio", b"x") == b"x"
    for output, piece in (("audio", "x"), ("n", 1), ("nope", b"")):
        with pytest.raises(EngineError):
            check_piece(Strict(), output, piece)


@pytest.mark.parametrize("outputs", [{}, {"text": 5, "tokens": 1}])
def test_a_stored_result_that_is_wrong_ends_the_request(outputs: dict[str, Any]) -> None:
    task = composite(lambda self, q: self.brain(prompt=q).text)
    log = Pass([], {})
    log.run(task, "q")
    outcome = Pass(log.new_nodes, {log.new_nodes[0].token: Result(1, outputs)}).run(task, "q")
    assert isinstance(outcome.error, RecordError)


# ------------------------------------------------------------ tensors


def test_tensors_stay_in_the_data_plane() -> None:
    def invoke(self, q):
        embeddings = [self.eye(image=i).emb for i in q]
        text = self.brain(prompt="p", images=embeddings).text
        return len(text) and text

    result, driver, _ = run(composite(invoke), ["x", "y"])
    assert result == "p|e(x)+e(y)"
    nodes = driver.store.log()[0]
    assert nodes[2].inputs["images"] == [Edge(n.token, "emb", False) for n in nodes[:2]]
    assert nodes[0].outputs == {"emb": "tensor"}


@pytest.mark.parametrize("use", [bool, len, list, np.asarray, float, lambda t: t[0]])
def test_looking_into_a_tensor_is_a_type_error_in_every_pass(use) -> None:
    task = composite(lambda self, q: use(self.eye(image="x").emb))
    log = Pass([], {})
    first = log.run(task, "q")
    assert first.kind == "wait"
    ref = Ref("r", log.new_nodes[0].token, 0, "a", "emb", 0, "h", "e", 0, 0, 4, "float32", (1,))
    outcome = Pass(log.new_nodes, {log.new_nodes[0].token: Result(1, {"emb": ref})}).run(task, "q")
    with pytest.raises(TypeError, match="no value inside invoke"):
        raise outcome.error


def test_waiting_for_a_tensor_waits_for_its_call() -> None:
    def invoke(self, q):
        emb = self.eye(image="x").emb
        return wait(emb) is emb, emb == self.eye(image="x").emb, self.brain(prompt="p", images=[emb]).tokens

    log = Pass([], {})
    assert log.run(composite(invoke), "q").kind == "wait"
    assert len(log.new_nodes) == 1


class Rows(UnitTask):
    class Out(BaseModel):
        rows: Stream[list[Tensor]]
        n: int

    def __call__(self, *, rows: Stream[list[Tensor]] = [], images: list[Tensor] = []) -> Out:  # noqa: B006
        raise NotImplementedError


def test_a_stream_of_tensors_is_passed_on_and_not_looked_into() -> None:
    task = composite(lambda self, q: self.last(rows=self.first().rows).n, first=Rows(), last=Rows())
    run_ = Pass([], {})
    assert run_.run(task, "q").kind == "done"
    first, last = run_.new_nodes
    assert last.inputs["rows"] == Edge(first.token, "rows", True)

    def look(self: Any, q: str) -> None:
        for way in (len, list, bool, lambda rows: rows[0]):
            with pytest.raises(TypeError, match="a Tensors has no value inside invoke"):
                way(self.first().rows)

    assert Pass([], {}).run(composite(look, first=Rows()), "q").kind == "done"


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (lambda t: {"images": t.first().rows}, r"images: expected list\[cornstalk.types.Tensor\], got Tensors"),
        (lambda t: {"images": [t.first().rows]}, "images: expected list"),
        (lambda t: {"rows": t.eye(image="x").emb}, r"rows: expected list\[cornstalk.types.Tensor\], got Tensor"),
    ],
)
def test_a_stream_of_tensors_fits_nowhere_else(inputs: Any, message: str) -> None:
    def call(self: Any, q: str) -> None:
        with pytest.raises(TypeError, match=message):
            self.last(**inputs(self))

    Pass([], {}).run(composite(call, first=Rows(), last=Rows(), eye=Eye()), "q")
