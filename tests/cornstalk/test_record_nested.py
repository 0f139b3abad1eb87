"""Nested composites: names, and that one that waits does not hold up its caller."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from pydantic import BaseModel

from cornstalk import CompositeTask, Stream, TaskError
from cornstalk.errors import NondeterministicInvoke, RecordError
from cornstalk.record import Pass
from cornstalk.testing.driver import Driver
from cornstalk.testing.store import Store
from tests.cornstalk.model.apps import LLM, Echo, Eye, Risky, composite, executor, run


class Step(CompositeTask):
    echo = Echo()

    def invoke(self, x):
        a = self.echo(x=x).s
        return self.echo(x=a).s if len(a) < 3 else a


class Retry(CompositeTask):
    echo, risky = Echo(), Risky()

    def invoke(self, x: str) -> str:
        s = self.echo(x=x).s
        for _ in range(3):
            s = self.echo(x=s + "x").s
            if s.endswith("xx"):
                break
        return s


def test_nested_composites_have_their_own_names_and_may_return_pending_values() -> None:
    class Outer(CompositeTask):
        step, echo = Step(), Echo()

        def invoke(self, q):
            return self.echo(x=self.step(q)).s + self.step("long one")

    result, _, ex = run(Outer(), "q")
    assert result == "qlong one"
    assert set(ex.ran) == {"step#0/echo#0", "step#0/echo#1", "echo#0", "step#1/echo#0"}


def test_members_of_lists_and_dicts_are_named_by_place() -> None:
    class Outer(CompositeTask):
        def __init__(self):
            self.steps = [Step(), Step()]
            self.eyes = {"left": Echo(), "a/b%": Echo()}
            self.deep = {1: [Step()]}

        def invoke(self, q):
            parts = [step("long") for step in self.steps]
            return [
                *parts,
                self.eyes["left"](x=q).s,
                self.eyes["a/b%"](x=q).s,
                self.deep[1][0]("long"),
                self.steps[0]("aaa"),
            ]

    result, _, ex = run(Outer(), "q")
    assert result == ["long", "long", "q", "q", "long", "aaa"]
    assert set(ex.ran) == {
        "steps[0]#0/echo#0",
        "steps[1]#0/echo#0",
        "eyes['left']#0",
        "eyes['a%2Fb%25']#0",
        "deep[1][0]#0/echo#0",
        "steps[0]#1/echo#0",
    }


def test_a_subtask_of_a_subtask_or_of_a_caller_may_be_called_directly() -> None:
    class Inner(CompositeTask):
        def invoke(self, given):
            task, x = given
            return task(x=x).s

    class Outer(CompositeTask):
        def __init__(self):
            self.step, self.inner, self.mine = Step(), Inner(), Echo()

        def invoke(self, q):
            return self.step.echo(x=q).s + self.inner((self.mine, q))

    result, _, ex = run(Outer(), "q")
    assert result == "qq"
    assert set(ex.ran) == {"step.echo#0", "inner#0/mine#0"}


def test_a_task_that_no_attribute_holds_is_refused() -> None:
    def invoke(self, q):
        return Echo(tag="made here")(x=q).s

    with pytest.raises(RecordError, match=r"Echo at test_record_nested.py:\d+ is no attribute of App"):
        run(composite(invoke), "q")


def test_composites_with_breaks_run_side_by_side() -> None:
    class Many(CompositeTask):
        retry, echo = Retry(), Echo()

        def invoke(self, q):
            return " ".join(self.retry(c) for c in q)

    result, _, ex = run(Many(), "abcdefgh")
    assert result == " ".join(c + "xx" for c in "abcdefgh")
    assert ex.peak >= 6
    assert len(ex.ran) == 24


class Shout(CompositeTask):
    echo = Echo()

    def invoke(self, x: str) -> str:
        return self.echo(x=x + "!").s


class Line(BaseModel):
    title: str = ""
    text: Stream[str] = ""


class Say(CompositeTask):
    echo = Echo()

    def invoke(self, line: Line) -> str:
        return self.echo(x=line.text or line.title).s


def recorded_at_once(invoke) -> list[str]:
    """The calls of the first pass."""
    first = Pass([], {})
    first.run(composite(invoke, retry=Retry(), shout=Shout(), say=Say(), echo=Echo()), "q")
    return [node.id for node in first.new_nodes]


def test_the_result_of_a_composite_that_waits_holds_nobody_up_until_a_unit_task_gets_it() -> None:
    def to_a_composite(self, q):
        return self.shout(self.retry(q)), self.echo(x="beside").s

    def to_a_unit_task(self, q):
        return self.echo(x=self.retry(q)).s, self.shout("beside")

    assert recorded_at_once(to_a_composite) == ["retry#0/echo#0", "echo#0"]
    assert recorded_at_once(to_a_unit_task) == ["retry#0/echo#0"]
    task = composite(to_a_composite, retry=Retry(), shout=Shout(), say=Say(), echo=Echo())
    assert run(task, "q")[0] == ("qxx!", "beside")


def test_a_plain_field_of_a_nested_request_waits_a_stream_field_does_not() -> None:
    def plain(self, q):
        return self.say(Line(title=self.retry(q))), self.echo(x="beside").s

    def stream(self, q):
        return self.say(Line(text=self.retry(q))), self.echo(x="beside").s

    assert recorded_at_once(plain) == ["retry#0/echo#0"]
    assert recorded_at_once(stream) == ["retry#0/echo#0", "echo#0"]
    for invoke in (plain, stream):
        task = composite(invoke, retry=Retry(), shout=Shout(), say=Say(), echo=Echo())
        assert run(task, "q")[0] == ("qxx", "beside")


def test_a_list_changed_by_a_composite_that_is_still_under_way() -> None:
    class Note(CompositeTask):
        echo = Echo()

        def invoke(self, notes: list) -> str:
            s = self.echo(x="n").s
            notes.append(s.upper())
            return s

    class Notes(CompositeTask):
        note, echo = Note(), Echo()

        def invoke(self, q):
            notes = []
            first = self.note(notes)
            return self.echo(x=list(notes)).s, first

    result, _, ex = run(Notes(), "q")
    assert result == ("['N']", "n")
    assert ex.cancelled == ["echo#0"]  # a guess that had to be made again


def test_a_failure_inside_a_composite_is_caught_outside() -> None:
    class Inner(CompositeTask):
        echo, risky = Echo(), Risky()

        def invoke(self, x: str) -> str:
            return self.risky(x=self.echo(x=x).s.upper() + "bad").s

    class Outer(CompositeTask):
        inner, echo = Inner(), Echo()

        def invoke(self, q):
            out = []
            for c in q:
                try:
                    out.append(self.inner(c))
                except TaskError as error:
                    out.append(error.call)
            return out

    assert run(Outer(), "ab")[0] == ["inner#0/risky#0", "inner#1/risky#0"]


def test_chance_in_one_composite_is_found_while_another_runs() -> None:
    class Dice(CompositeTask):
        echo = Echo()

        def invoke(self, x: str) -> str:
            s = self.echo(x="a").s
            return self.echo(x=s.upper() + str(random.random())).s

    class Both(CompositeTask):
        retry, dice = Retry(), Dice()

        def invoke(self, q):
            return self.retry(q) + self.dice(q)

    for seed in range(10):
        with pytest.raises(NondeterministicInvoke):
            run(Both(), "q", seed)


def test_an_error_of_a_nested_composite_that_knows_all_is_its_callers() -> None:
    class Inner(CompositeTask):
        echo = Echo()

        def invoke(self, x: str) -> str:
            return {"b": "c"}[self.echo(x=x).s]

    class Outer(CompositeTask):
        inner = Inner()

        def invoke(self, q):
            try:
                return self.inner(q)
            except KeyError as error:
                return f"no {error}"

    assert run(Outer(), "a")[0] == "no 'a'"
    assert run(Outer(), "b")[0] == "c"


def test_a_composite_without_an_annotated_result_suspends_its_caller() -> None:
    class Outer(CompositeTask):
        step, echo = Step(), Echo()  # Step.invoke says nothing of its result

        def invoke(self, q):
            return self.echo(x=self.step(q)).s, self.step("b")

    assert run(Outer(), "a")[0] == ("a", "b")


def test_c_code_waits_for_what_was_in_sight_only() -> None:
    def joined(parts):
        return "".join(parts)

    def invoke(self, q):
        slow = self.brain(prompt="never").text
        self.eye(image=joined([self.echo(x="a").s, self.echo(x="b").s]))
        return slow

    goes_on_beside_what_never_ends(invoke)


def test_a_model_waits_for_the_values_that_its_errors_name_only() -> None:
    class Two(BaseModel):
        title: str
        other: Any

    def invoke(self, q):
        slow = self.brain(prompt="never").text
        two = Two(title=self.echo(x="abc").s, other=slow)
        self.eye(image=two.title)
        return slow

    goes_on_beside_what_never_ends(invoke)


def goes_on_beside_what_never_ends(invoke):
    async def main():
        gate = asyncio.Event()

        async def slow(prompt, images):
            await gate.wait()
            yield "text", "done"
            yield "tokens", 1

        task = composite(invoke, brain=LLM(), eye=Eye(), echo=Echo())
        ex = executor(task, engines={LLM: slow})
        job = asyncio.create_task(Driver(task, "q", ex, Store()).answer())
        for _ in range(100):
            await asyncio.sleep(0)
        assert "eye#0" in ex.ran  # recorded and run though the slow one is not done
        gate.set()
        return await job

    assert asyncio.run(main()) == "done"
