"""`check` passes sound apps and names what is wrong with the others: each kind of mistake once."""

from __future__ import annotations

import functools
import itertools
import random
import re
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import BaseModel

from cornstalk import App, CompositeTask, TaskError, Tensor, new_id, rng, wait
from cornstalk.testing import CheckFailed, check
from tests.cornstalk.model.apps import ENGINES, LLM, Answer, Echo, Eye, Voice, composite, echo


def fails(invoke: Any, why: str, request: Any = "q", engines: Any = ENGINES) -> str:
    with pytest.raises(CheckFailed, match=why) as failed:
        check(composite(invoke), request, engines)
    return str(failed.value)


# ------------------------------------------------------------ sound


def sound(self: Any, q: str) -> Answer:
    notes: list[str] = []
    while len(notes) < 3:
        try:
            notes.append(self.risky(x=f"{q}{len(notes)}" * (len(notes) + 1)).s)
        except TaskError:
            notes.append(self.echo(x=f"not {q}").s)
    label = "-".join(sorted(notes))
    text = self.brain(prompt=label, images=[self.eye(image=n).emb for n in notes]).text
    return Answer(text=text, audio=self.voice(text=text).audio, label=label + new_id()[:2] + str(rng().random()))


def test_a_sound_app_passes_and_its_run_is_returned() -> None:
    run = check(composite(sound), "qq", ENGINES)
    assert run.response.text.startswith("not qq-ok:qq")
    assert len(run.graph.nodes) > 8


def test_an_error_that_all_runs_agree_on_is_raised() -> None:
    with pytest.raises(ValueError, match="invalid literal for int"):
        check(composite(lambda self, q: int(self.echo(x=q).s)), "x", ENGINES)
    for invoke in (
        lambda self, q: self.risky(x=self.echo(x="bad").s).s,
        lambda self, q: [self.risky(x=f"bad{i}").s for i in range(3)],  # the first is told
    ):
        with pytest.raises(TaskError, match="cannot bad"):
            check(composite(invoke), "x", ENGINES)


def test_a_handler_that_leaves_comes_before_a_later_failure() -> None:
    def invoke(self: Any, q: str) -> str:
        try:
            first = self.risky(x="bad first").s
        except TaskError as error:
            return f"left: {error}"
        return str(first + self.risky(x="bad second").s)

    assert check(composite(invoke), "q", ENGINES).response == "left: risky#0: ValueError: cannot bad first"


def test_what_is_told_of_a_failure_knows_nothing_of_guesses() -> None:
    def invoke(self: Any, q: str) -> str:
        try:
            return str(self.echo(x=self.risky(x="bad").s).s)  # a guess that is cut
        except TaskError:
            pass
        try:
            return str(self.risky(x="bad, too").s)
        except TaskError as error:
            return str(error)

    run = check(composite(invoke), "q", ENGINES)
    assert run.response == "risky#1: ValueError: cannot bad, too"


async def test_check_inside_an_async_test() -> None:
    assert check(composite(sound), "qq", ENGINES)


def test_long_runs_are_crashed_at_a_hundred_places() -> None:
    crashed: list[int] = []

    def invoke(self: Any, q: str) -> list[str]:
        crashed.append(1)
        return [self.echo(x=i).s for i in range(150)]

    assert check(composite(invoke), "q", ENGINES)
    assert len(crashed) < 450


# ------------------------------------------------------------ chance


@pytest.mark.parametrize(
    "changing",
    [random.random, time.perf_counter, lambda: uuid.uuid4().hex, itertools.count().__next__],
    ids=["random", "clock", "uuid", "global counter"],
)
def test_what_changes_from_pass_to_pass_and_reaches_only_the_response(changing: Any) -> None:
    def invoke(self: Any, q: str) -> dict[str, str]:
        return {"text": wait(self.brain(prompt=q).text), "label": f"{changing()}"}

    message = fails(invoke, "different answers for the same results: label was '")
    assert "use now(), rng() or new_id()" in message


def test_what_changes_and_reaches_a_call() -> None:
    def invoke(self: Any, q: str) -> str:
        return str(self.echo(x=self.echo(x=random.random()).s + "!").s.upper())

    message = fails(invoke, "plain Python and recorded differ: the one answered '0")
    assert "the other raised NondeterministicInvoke" in message
    assert message.count("test_testing_check.py:") >= 2


def test_a_cached_result_leaves_out_calls() -> None:
    kept: dict[str, str] = {}

    def invoke(self: Any, q: str) -> str:
        if q not in kept:
            kept[q] = wait(self.echo(x=q).s)
        return kept[q]

    fails(invoke, r"make different calls: echo#0\(x='q'\) at test_testing_check.py:\d+, then nothing")


def test_an_engine_that_is_no_function_of_its_inputs() -> None:
    count = itertools.count()
    engines = {Echo: lambda x: {**echo(x), "n": next(count)}}
    fails(lambda self, q: self.echo(x=q).n, "the response was 0, then 1", engines=engines)


# ------------------------------------------------------------ looking in a way that cannot be seen


def test_hidden_looking_is_named_by_the_strict_run() -> None:
    def invoke(self: Any, q: str) -> str:
        s = self.echo(x=q).s
        return str(self.echo(x="a" if type(s) is str else "b").s)

    message = fails(invoke, "plain Python and strict differ: the one answered 'a', the other raised Nondet")
    assert "looked at a result in a way that cannot be seen" in message


@pytest.mark.parametrize("look", [lambda text: type(text).__name__, lambda text: f"{random.random()}"])
def test_a_response_that_changes_after_it_began(look: Any) -> None:
    def invoke(self: Any, q: str) -> Answer:
        text = self.brain(prompt=q).text
        return Answer(text=text, label=look(text))

    fails(invoke, "the response changed after it began: label was '")


# ------------------------------------------------------------ responses


class Shows(BaseModel):
    model_config = {"arbitrary_types_allowed": True}
    tensor: Tensor


class Eyes(CompositeTask):
    eye = Eye()

    def invoke(self, q: Shows | str) -> Shows:
        return Shows(tensor=self.eye(image=str(q)).emb)


class Word(BaseModel):
    word: str


class Picture(CompositeTask):
    eyes = Eyes()

    def invoke(self, q: Word) -> Shows:
        return Shows(tensor=self.eyes(q.word).tensor)


def test_a_nested_composite_may_give_tensors_but_an_app_may_not() -> None:
    assert check(Eyes(), "i", ENGINES)
    with pytest.raises(CheckFailed, match="the response cannot be sent to a client: it holds a Tensor"):
        check(App("picture", Picture()), {"word": "i"}, ENGINES)


def test_differences_are_named_by_their_place() -> None:
    fails(lambda self, q: {"a": [1, {"b": random.random()}]}, re.escape("a[1].b was 0."))
    fails(lambda self, q: [1] * random.randrange(1, 10**6), r"the response was \[1, 1, .*\.\.\., then \[1, 1")
    fails(lambda self, q: {5, random.random()}, re.escape("[1] was 0."))
    fails(lambda self, q: functools.partial(random.random), "the response was functools.partial")


def test_an_assertion_of_the_test_itself_passes_through() -> None:
    def voice(text: str) -> dict[str, bytes]:
        raise AssertionError("said too early")

    task = composite(lambda self, q: self.voice(text=self.brain(prompt=q).text).audio)
    with pytest.raises(AssertionError, match=r"^said too early$"):
        check(task, "q", {**ENGINES, Voice: voice})


def test_streams_that_break_half_way_are_checked() -> None:
    async def breaks(prompt: str, images: list[Any]) -> AsyncIterator[tuple[str, Any]]:
        yield "text", "so far "
        raise ValueError("GPU fell off")

    task = composite(lambda self, q: Answer(text=self.brain(prompt=q).text))
    with pytest.raises(TaskError, match="GPU fell off"):
        check(task, "q", {LLM: breaks})
