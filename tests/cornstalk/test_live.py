"""Fields of a request that arrive while it runs: values of the request in each pass, edges between nodes."""

from __future__ import annotations

import itertools
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field, field_validator

from cornstalk import App, CompositeTask, Stream
from cornstalk.errors import AppError, BadInput
from cornstalk.graph import decide, fold
from cornstalk.live import LiveRequest, checked, live_request, stream_port
from cornstalk.messages import INPUT, Accepted, Edge, End, First, Graph, StreamRef, WorkItem
from cornstalk.pending import is_pending
from cornstalk.record import Pass, Result
from cornstalk.response import begins, same_response, stored_response, stream_fields
from tests.cornstalk.model.apps import LLM, Answer, Echo, Voice

LIVE = {"text": StreamRef("r", INPUT, 0, "text")}


class Ask(BaseModel):
    text: Stream[str]
    sound: Stream[bytes] = b""
    title: str = "t"
    tags: list[str] = []


class Speak(CompositeTask):
    brain, voice, echo = LLM(), Voice(), Echo()

    def invoke(self, q: Ask) -> Answer:
        title = self.echo(x=q.title).s
        if q.tags and q.text == q.tags[0]:
            title = self.echo(x="same").s
        return Answer(text=q.text, audio=self.voice(text=q.text).audio, label=title)


APP = App("speak", Speak())


def request(**known: Any) -> LiveRequest:
    made = live_request(APP, known | LIVE)
    assert made is not None
    return made


def known(text: str, seq: int = 2) -> dict[str, Result]:
    return {INPUT: Result(seq, {"text": text})}


@pytest.mark.parametrize("text", ["hi", "a text that is long enough to be an edge"])
def test_it_is_an_edge_before_and_after_it_has_arrived(text: str) -> None:
    first = Pass([], {})
    outcome = first.run(APP.task, request())
    assert outcome.kind == "wait"  # for the title
    title = {first.new_nodes[0].token: Result(1, echo_of("t"))}
    second = Pass(first.new_nodes, title)
    outcome = second.run(APP.task, request())
    log = (*first.new_nodes, *second.new_nodes)
    assert outcome.kind == "done"
    assert not second.complete
    assert log[-1].inputs == {"text": Edge(INPUT, "text", True)}
    audio = {log[-1].token: Result(3, {"audio": b"X"})}
    last = Pass(log, title | known(text) | audio)
    final = last.run(APP.task, request())
    assert last.complete
    assert final.value == Answer(text=text, audio=b"X", label="t")
    same_response(outcome.value, final.value, last)
    streams = {"text": (INPUT, "text"), "audio": (log[-1].token, "audio")}
    assert stream_fields(outcome.value, second) == stream_fields(final.value, last) == streams
    assert stored_response("r", final.value, streams, {INPUT: 0, log[-1].token: 0})["text"] == LIVE["text"]


def echo_of(text: str) -> dict[str, Any]:
    person = {"name": text, "age": 1}
    return {"s": text, "n": 1, "f": 0.5, "b": b"", "l": [], "d": {}, "m": person, "yes": True, "o": None, "mood": "sad"}


def test_a_response_begins_with_the_first_piece_of_what_is_passed_on() -> None:
    class Back(CompositeTask):
        voice = Voice()

        def invoke(self, q: Ask) -> Answer:
            return Answer(text=q.text, audio=self.voice(text=q.text).audio)

    step = Pass([], {})
    value = step.run(Back(), request()).value
    (voice,) = step.new_nodes
    assert not begins(value, step, set(), set())
    assert begins(value, step, set(), {(INPUT, "text")})
    assert begins(value, step, set(), {(voice.token, "audio")})


def test_to_look_at_it_waits_for_the_whole() -> None:
    log: tuple[Any, ...] = ()
    results: dict[str, Result] = {}
    for _ in range(2):
        step = Pass(log, results)
        outcome = step.run(APP.task, request(tags=["x"]))
        log += step.new_nodes
        results[log[0].token] = Result(1, echo_of("t"))
    assert outcome.groups == ((INPUT,),)
    step = Pass(log, results | known("x"))
    step.run(APP.task, request(tags=["x"]))
    assert step.new_nodes[0].inputs == {"x": "same"}


def test_each_pass_has_a_request_of_its_own() -> None:
    class Changes(CompositeTask):
        voice = Voice()

        def invoke(self, q: Ask) -> Answer:
            q.tags.append("more")
            assert q.tags == ["a", "more"]
            return Answer(text="", audio=self.voice(text=q.text).audio)

    asked = request(tags=["a"])
    for _ in range(3):
        outcome = Pass([], {}).run(Changes(), asked)
        assert outcome.kind == "done", outcome.error


def test_what_depends_on_it_unseen_is_a_guess_that_is_cut() -> None:
    class Sly(CompositeTask):
        echo = Echo()

        def invoke(self, q: Ask) -> Answer:
            return Answer(text=q.text, label=self.echo(x=type(q.text).__name__).s)

    first = Pass([], {})
    first.run(Sly(), request())
    second = Pass(first.new_nodes, known("x"))
    second.run(Sly(), request())
    assert second.cuts == (first.new_nodes[0].token,)
    assert second.new_nodes[0].inputs == {"x": "str"}


# ------------------------------------------------------------ what may arrive live


def test_only_declared_streams_may() -> None:
    assert stream_port(Ask, "sound").empty == b""
    for field, says in (("title", "declares Stream"), ("nothing", "no such field")):
        with pytest.raises(BadInput, match=says) as caught:
            stream_port(Ask, field)
        assert caught.value.field == field


def test_the_other_fields_are_checked_as_ever() -> None:
    made = checked(APP, request(title="x"))
    assert isinstance(made, Ask)
    assert is_pending(made.text)
    assert (made.title, made.sound) == ("x", b"")
    with pytest.raises(BadInput, match="valid string") as caught:
        checked(APP, request(title=3))
    assert caught.value.field == "title"


class Short(BaseModel):
    text: Annotated[Stream[str], Field(max_length=3)]


class Looks(BaseModel):
    text: Stream[str]

    @field_validator("text")
    @classmethod
    def lower(cls, value: str) -> str:
        return value.lower()


class Broken(BaseModel):
    text: Stream[str]

    @field_validator("text")
    @classmethod
    def fails(cls, value: str) -> str:
        raise ZeroDivisionError


@pytest.mark.parametrize("model", [Short, Looks])
def test_a_model_that_looks_at_it_takes_it_only_whole(model: type[BaseModel]) -> None:
    app = App("looks", _of(model))
    live = live_request(app, LIVE)
    assert live is not None
    with pytest.raises(BadInput, match="expected whole") as caught:
        checked(app, live)
    assert caught.value.field == "text"


def test_a_validator_with_a_bug_is_the_app_s_error() -> None:
    app = App("broken", _of(Broken))
    live = live_request(app, LIVE)
    assert live is not None
    with pytest.raises(AppError, match="ZeroDivisionError"):
        checked(app, live)


def _of(model: type[BaseModel]) -> CompositeTask:
    class Task(CompositeTask):
        echo = Echo()

        def invoke(self, q):
            return Answer(text=q.text)

    Task.invoke.__annotations__ = {"q": model, "return": Answer}
    return Task()


# ------------------------------------------------------------ what is sent


ACCEPTED = Accepted(
    request="r", tenant="t", app="a", app_version="1", deadline=9.0, input={"text": LIVE["text"], "n": 1}
)


def test_consumers_are_sent_at_its_first_piece_and_itself_never() -> None:
    step = Pass([], {})
    step.run(Both(), request())
    graph = Graph(index=0, nodes=step.new_nodes, closed=True)
    early, whole = step.new_nodes
    first = First(node=INPUT, gen=0, attempt="g", output="text")
    end = End(node=INPUT, gen=0, attempt="g", outcome="done", outputs={"text": 4})
    facts = (ACCEPTED, graph, first, end)
    for order in itertools.permutations(facts):
        sent = {}
        for count, fact in enumerate(order, start=1):
            for item in decide(fold(order[:count]), fact):
                assert isinstance(item, WorkItem)
                sent[item.node] = item.inputs
        assert set(sent) <= {early.token, whole.token}
    assert decide(fold(facts[:2]), graph) == decide(fold(facts[:2]), None) == []
    (item,) = decide(fold(facts[:3]), first)
    assert isinstance(item, WorkItem)
    assert (item.node, item.inputs) == (early.token, {"text": LIVE["text"]})
    sent = {i.node: i.inputs for i in decide(fold(facts), end) if isinstance(i, WorkItem)}
    assert sent[whole.token] == {"prompt": LIVE["text"], "images": []}


class Both(CompositeTask):
    brain, voice = LLM(), Voice()

    def invoke(self, q: Ask) -> Answer:
        audio = self.voice(text=q.text).audio
        return Answer(text=self.brain(prompt=q.text).text, audio=audio)
