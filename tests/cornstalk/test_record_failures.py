"""Failures of calls and of the user's own code: where they are raised, what they end, and that nothing swallows one."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import BaseModel, field_validator

from cornstalk import CompositeTask, Stream, TaskError, wait
from cornstalk.errors import NondeterministicInvoke
from cornstalk.messages import Error
from cornstalk.record import Pass, Result
from cornstalk.testing.driver import Driver
from cornstalk.testing.store import Store
from tests.cornstalk.model.apps import LLM, Echo, composite, executor, run

# ------------------------------------------------------------ failures


def test_a_failure_is_raised_at_its_call_and_can_be_caught() -> None:
    def invoke(self, q):
        try:
            return self.risky(x="bad").s
        except TaskError as error:
            return f"sorry: {error.call} {error.error.component[:10]}"

    assert run(composite(invoke))[0] == "sorry: risky#0 task-risky"


def test_an_unhandled_failure_ends_the_request_and_cancels_what_comes_after_it() -> None:
    def invoke(self, q):
        self.echo(x="before")
        self.risky(x="bad")
        return self.echo(x="later").s

    for seed in range(20):
        with pytest.raises(TaskError, match="risky#0: ValueError: cannot bad"):
            run(composite(invoke), seed=seed)


@pytest.mark.parametrize("seed", range(20))
def test_of_several_failures_the_first_call_s_is_told(seed: int) -> None:
    def invoke(self, q):
        return [self.risky(x=f"bad {i}").s for i in range(4)]

    with pytest.raises(TaskError, match="risky#0: ValueError: cannot bad 0"):
        run(composite(invoke), seed=seed)


@pytest.mark.parametrize("seed", range(20))
def test_a_handler_that_leaves_comes_before_a_later_failure(seed: int) -> None:
    def invoke(self, q):
        try:
            first = self.risky(x="bad first").s
        except TaskError:
            return "left"
        return first + self.risky(x="bad second").s

    assert run(composite(invoke), seed=seed)[0] == "left"


@pytest.mark.parametrize("seed", range(20))
def test_a_look_that_cannot_be_seen_comes_before_a_later_failure(seed: int) -> None:
    def invoke(self, q):
        s = self.echo(x=q).s
        return s if type(s) is str else self.risky(x="bad").s + "!"

    assert run(composite(invoke), "a", seed=seed)[0] == "a"


@pytest.mark.parametrize("seed", range(10))
def test_work_begun_in_the_hope_of_success_is_cut_off(seed: int) -> None:
    def invoke(self, q):
        try:
            a = self.risky(x="bad").s
        except TaskError:
            return self.echo(x="plan b").s
        return a + self.echo(x="plan a").s  # same name and ordinal as plan b

    result, _, ex = run(composite(invoke), seed=seed)
    assert result == "plan b"
    assert ex.cancelled == ["echo#0"]
    assert "echo#0~1" in ex.ran


def test_retry_in_a_loop() -> None:
    def invoke(self, q):
        for x in ["bad", "bad", "good"]:
            try:
                return self.risky(x=x).s
            except TaskError:
                continue

    result, _, ex = run(composite(invoke))
    assert result == "ok:good"
    assert len(ex.ran) == 3


def test_a_failure_ends_the_request_though_a_later_call_never_ends() -> None:
    def invoke(self, q):
        b, a = self.risky(x="bad"), self.brain(prompt="never")
        return a.text + b.s

    async def main():
        ex, driver = failing_beside_never(invoke)
        with pytest.raises(TaskError, match="risky#0"):
            await asyncio.wait_for(driver.answer(), 2)
        assert ex.cancelled == ["brain#0"]

    asyncio.run(main())


def test_a_failure_waits_for_the_calls_before_it_and_cancels_those_after_it_at_once() -> None:
    def invoke(self, q):
        before, failing = self.brain(prompt="never").text, self.risky(x="bad").s
        return [before, failing, self.echo(x="after").s]

    async def main():
        ex, driver = failing_beside_never(invoke)
        job = asyncio.create_task(driver.answer())
        while not ex.cancelled:
            assert not job.done()
            await driver.store.changed.wait()
            await asyncio.sleep(0)
        assert ex.cancelled == ["echo#0"]
        assert ex.under_way == ["brain#0"]
        job.cancel()

    asyncio.run(asyncio.wait_for(main(), 5))


def failing_beside_never(invoke):
    async def never(prompt, images):
        await asyncio.Event().wait()
        yield "text", ""

    task = composite(invoke)
    ex = executor(task, engines={LLM: never})
    return ex, Driver(task, "q", ex, Store())


def test_a_users_own_error_keeps_its_traceback_and_waits_for_nothing_when_all_is_known() -> None:
    def invoke(self, q):
        return {"a": 1}[self.echo(x=q).s]

    with pytest.raises(KeyError, match="zzz") as error:
        run(composite(invoke), "zzz")
    assert error.traceback[-1].frame.code.name == "invoke"


def test_an_error_before_any_call_is_raised_at_once() -> None:
    with pytest.raises(ZeroDivisionError):
        run(composite(lambda self, q: 1 / 0))


# ------------------------------------------------------------ nothing is swallowed


def test_bare_except_kills_the_pass_not_the_answer() -> None:
    def invoke(self, q):
        s = self.echo(x=q).s
        for _ in range(3):
            try:
                v = s + "x"
            except:  # noqa: E722
                v = "swallowed"
            last = self.echo(x=v).s
        return last

    result, _, ex = run(composite(invoke), "a")
    assert result == "ax"
    assert len(ex.ran) == 4


def test_except_exception_in_an_endless_loop_does_not_catch_a_break() -> None:
    turns = []

    def invoke(self, q):
        s = self.echo(x=q).s
        while True:
            turns.append(1)
            assert len(turns) < 100
            try:
                return s.upper()
            except Exception:
                continue

    assert run(composite(invoke), "a")[0] == "A"
    assert len(turns) == 2


def test_a_task_error_made_by_hand_in_a_dead_call_does_not_leave_it() -> None:
    class Inner(CompositeTask):
        echo = Echo()

        def invoke(self, x) -> str:
            try:
                return self.echo(x=x).s + "!"
            except BaseException as error:
                raise TaskError(Error(code="x", message="swallowed")) from error

    class Outer(CompositeTask):
        inner = Inner()

        def invoke(self, q):
            return self.inner(q)

    assert run(Outer(), "a")[0] == "a!"


def test_a_validator_of_a_response_may_touch() -> None:
    class Strict(BaseModel):
        text: Stream[str]

        @field_validator("text")
        @classmethod
        def short(cls, v):
            assert len(v) < 50
            return v

    def invoke(self, q):
        return Strict(text=self.brain(prompt=q).text)

    assert run(composite(invoke), "hi")[0] == Strict(text="hi|")


def test_a_leak_that_changes_the_calls_costs_the_guess_and_strict_mode_names_it() -> None:
    def invoke(self, q):
        s = self.echo(x=q).s
        if type(s) is str:
            return self.echo(x="right").s
        return self.echo(x="wrong").s

    result, _, ex = run(composite(invoke), "q")
    assert result == "right"
    assert ex.cancelled == ["echo#1"]
    assert "echo#1~1" in ex.ran
    first = Pass([], {})
    first.run(composite(invoke), "q")
    second = Pass(first.new_nodes, {first.new_nodes[0].token: Result(1, {"s": "q"})})
    second.run(composite(invoke), "q")
    (unseen,) = second.unseen
    assert unseen.startswith("echo#1 at test_record_failures.py:")
    with pytest.raises(NondeterministicInvoke) as error:
        run(composite(invoke), "q", strict=True)
    assert "echo#1(x='wrong') at test_record_failures.py:" in str(error.value)
    assert "echo#1(x='right') at test_record_failures.py:" in str(error.value)


def test_wait_closes_a_leak() -> None:
    def invoke(self, q):
        s = wait(self.echo(x=q).s)
        return self.echo(x="right" if type(s) is str else "wrong").s

    result, _, ex = run(composite(invoke), "q", strict=True)
    assert result == "right"
    assert not ex.cancelled
