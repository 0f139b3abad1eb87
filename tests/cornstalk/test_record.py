"""The rules of record and replay: what runs side by side, what a break costs, what is refused."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import random
import threading
import time
import uuid
import weakref
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from cornstalk import CompositeTask, Stream, TaskError, wait
from cornstalk.errors import NondeterministicInvoke, RecordError, StaleResult, TooManyCalls
from cornstalk.messages import Error
from cornstalk.record import Pass, Result
from cornstalk.testing.driver import Driver
from cornstalk.testing.store import Store
from tests.cornstalk.model.apps import LLM, Echo, Mood, composite, executor, run

# ------------------------------------------------------------ parallelism and breaks


def test_independent_calls_run_side_by_side_and_cost_no_break() -> None:
    def invoke(self, q):
        outs = [self.echo(x=f"{q}{i}").s for i in range(8)]
        return list(outs)

    result, driver, ex = run(composite(invoke), "a")
    assert result == [f"a{i}" for i in range(8)]
    assert driver.passes == 2
    assert ex.peak >= 6


def test_calls_recorded_before_a_break_still_run_side_by_side() -> None:
    def invoke(self, q):
        a, b = self.echo(x="a"), self.echo(x="b")
        if a.s == "a":
            c = self.echo(x=b.s)
        return a.s + b.s + c.s

    result, driver, ex = run(composite(invoke))
    assert result == "abb"
    assert ex.peak >= 2
    assert driver.passes <= 5


def test_an_edge_needs_no_pass() -> None:
    def invoke(self, q):
        return self.echo(x=self.echo(x=self.echo(x=q).s).s).s

    result, driver, ex = run(composite(invoke), "z")
    assert result == "z"
    assert driver.passes == 2
    assert len(ex.ran) == 3


@pytest.mark.parametrize("n", [1, 5, 30])
def test_a_loop_on_results_makes_a_pass_per_step(n: int) -> None:
    def invoke(self, q):
        s, k = "", 0
        while len(s) < q:
            s = self.echo(x=s + "x").s
            k += 1
        return s, k

    result, driver, ex = run(composite(invoke), n)
    assert result == ("x" * n, n)
    assert driver.passes == n + 1
    assert len(ex.ran) == n


def test_generators_and_comprehensions() -> None:
    def invoke(self, q):
        def seen():
            for i in range(3):
                yield self.echo(x=f"{q}{i}").s

        upper = " ".join(s.upper() for s in seen())
        return upper, {i: self.echo(x=i).n for i in range(2)}, [self.echo(x=i).s for i in "ab"]

    assert run(composite(invoke), "q")[0] == ("Q0 Q1 Q2", {0: 1, 1: 1}, ["a", "b"])


def test_a_call_in_a_generator_left_unfinished_fails_loudly_not_late() -> None:
    kept = []

    def invoke(self, q):
        kept.append(self.echo(x=i).s for i in "ab")
        return 1

    assert run(composite(invoke))[0] == 1
    with pytest.raises(RuntimeError, match="inside the invoke"):
        next(kept[0])


def test_async_and_generator_invoke_are_refused() -> None:
    async def later(self, q): ...

    def pieces(self, q):
        yield 1

    for invoke in (later, pieces):
        with pytest.raises(TypeError, match="plain function"):
            composite(invoke)


def test_a_call_whose_output_nobody_reads_ends_before_the_answer() -> None:
    def invoke(self, q):
        self.brain(prompt="for its effect on nobody")
        return self.echo(x=q).s

    for seed in range(10):
        result, _, ex = run(composite(invoke), "a", seed=seed)
        assert result == "a"
        assert ("end", "brain#0") in ex.events


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
    assert unseen.startswith("echo#1 at test_record.py:")
    with pytest.raises(NondeterministicInvoke) as error:
        run(composite(invoke), "q", strict=True)
    assert "echo#1(x='wrong') at test_record.py:" in str(error.value)
    assert "echo#1(x='right') at test_record.py:" in str(error.value)


def test_wait_closes_a_leak() -> None:
    def invoke(self, q):
        s = wait(self.echo(x=q).s)
        return self.echo(x="right" if type(s) is str else "wrong").s

    result, _, ex = run(composite(invoke), "q", strict=True)
    assert result == "right"
    assert not ex.cancelled


# ------------------------------------------------------------ determinism


@pytest.mark.parametrize("source", [random.random, lambda: str(uuid.uuid4()), time.perf_counter_ns])
def test_time_and_chance_are_found(source) -> None:
    def invoke(self, q):
        return self.echo(x=source()).s

    with pytest.raises(NondeterministicInvoke, match=r"changes .time, random"):
        run(composite(invoke))


def test_chance_after_a_failure_is_found_too() -> None:
    def invoke(self, q):
        try:
            self.risky(x="bad")
        except TaskError:
            pass
        return self.echo(x=random.random()).s

    with pytest.raises(NondeterministicInvoke):
        run(composite(invoke))


def test_a_different_number_of_calls_is_found() -> None:
    runs = []

    def first_more(self, q):
        runs.append(1)
        if len(runs) == 1:
            self.echo(x="extra")
        return self.echo(x="a").s

    with pytest.raises(NondeterministicInvoke):
        run(composite(first_more))


def test_a_call_left_over_is_a_guess_if_an_earlier_result_is_new_else_an_error() -> None:
    runs = []

    def last_more(self, q):
        runs.append(1)
        out = self.echo(x="a").s
        if len(runs) == 1:
            self.echo(x="extra")
        return out

    with pytest.raises(NondeterministicInvoke, match="no such call"):
        run(composite(last_more), strict=True)
    runs.clear()
    assert run(composite(last_more))[0] == "a"


def test_a_call_that_did_not_happen_again_with_nothing_new_is_an_error() -> None:
    def invoke(self, q):
        if q:
            return self.echo(x="a").s

    first = Pass([], {})
    first.run(composite(invoke), True)
    second = Pass(first.new_nodes, {})
    outcome = second.run(composite(invoke), False)
    assert isinstance(outcome.error, NondeterministicInvoke)
    assert (second.new_nodes, second.cuts) == ((), ())


def test_the_error_cannot_be_swallowed() -> None:
    def invoke(self, q):
        try:
            return self.echo(x=random.random()).s
        except Exception:
            return "fine"

    with pytest.raises(NondeterministicInvoke):
        run(composite(invoke))


def test_a_cache_of_results_is_found() -> None:
    @functools.lru_cache
    def of_handles(task, x):
        return task.echo(x=x)

    with pytest.raises(StaleResult, match=r"echo#0\.s was kept"):
        run(composite(lambda self, q: of_handles(self, q).s), "q")

    @functools.lru_cache
    def of_values(task, x):
        return wait(task.echo(x=x).s)

    with pytest.raises(NondeterministicInvoke):
        run(composite(lambda self, q: of_values(self, q) + self.echo(x="more").s), "q")


def test_a_pending_value_kept_in_a_global_is_found() -> None:
    kept = []

    def invoke(self, q):
        kept.append(self.echo(x=q).s)
        return self.echo(x=kept[0]).s

    with pytest.raises(StaleResult):
        run(composite(invoke), "q")
    assert repr(kept[0]) == "<echo#0.s, not known yet>"
    with pytest.raises(StaleResult):
        len(kept[0])


def test_a_tensor_kept_in_a_global_is_found() -> None:
    kept = []

    def invoke(self, q):
        kept.append(self.eye(image="x").emb)
        return self.brain(prompt=self.echo(x=q).s.upper(), images=[kept[0]]).text

    with pytest.raises(StaleResult):
        run(composite(invoke), "q")
    with pytest.raises(StaleResult):
        wait(kept[0])


def test_an_error_that_ends_the_request_cannot_be_retried_for_ever() -> None:
    turns = []

    def invoke(self, q):
        while True:
            turns.append(1)
            assert len(turns) < 5000
            try:
                self.again(q)
            except Exception:
                continue

    class Again(CompositeTask):
        echo = Echo()

        def invoke(self, q) -> str:
            return self.echo(x=q).s + "".join(kept[-1:])

    kept = []
    with pytest.raises(TooManyCalls, match=r"invoke makes more than 1000 calls"):
        run(composite(invoke, again=Again()), "q")
    assert len(turns) == 1002

    def stale(self, q):
        kept.append(self.echo(x=q).s)
        for _ in range(100):
            try:
                len(kept[0])
            except Exception:
                turns.append(1)
        return len(kept[-1])

    turns.clear()
    with pytest.raises(StaleResult):
        run(composite(stale), "q")
    assert len(turns) == 1


def test_storing_on_self_is_refused() -> None:
    def invoke(self, q):
        self.last = self.echo(x=q).s
        return self.last

    with pytest.raises(RecordError, match="must not change its task"):
        run(composite(invoke), "q")


def test_a_thread_cannot_take_part() -> None:
    def invoke(self, q):
        failures = []

        def work():
            try:
                self.echo(x=q)
            except RuntimeError as error:
                failures.append(str(error))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return failures

    assert "inside the invoke" in run(composite(invoke), "q")[0][0]


@pytest.mark.parametrize("use", [lambda task, s: task.echo(x=1), lambda task, s: len(s)])
def test_a_thread_with_a_copied_context_is_refused(use) -> None:
    def invoke(self, q):
        context, s = contextvars.copy_context(), self.echo(x="a").s

        def work():
            try:
                context.run(use, self, s)
            except BaseException:
                pass

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return 1

    with pytest.raises(RecordError, match="thread"):
        run(composite(invoke))


def test_too_many_calls() -> None:
    def invoke(self, q):
        while True:
            self.echo(x="again")

    with pytest.raises(TooManyCalls, match=r"more than 1000 calls \(at test_record.py:"):
        run(composite(invoke))


def test_too_many_nodes() -> None:
    class Inner(CompositeTask):
        echo = Echo()

        def invoke(self, q) -> list[Any]:
            return [self.echo(x=i) for i in range(1000)]

    class Outer(CompositeTask):
        inner = Inner()

        def invoke(self, q):
            return [self.inner(i) for i in range(5)]

    first = Pass([], {})
    outcome = first.run(Outer(), "q")
    assert isinstance(outcome.error, TooManyCalls)
    assert "4096" in str(outcome.error)
    assert first.new_nodes == ()


# ------------------------------------------------------------ optional, bool, enum, and one object


def test_what_is_told_apart_by_identity_is_known_when_read() -> None:
    def invoke(self, q):
        r = self.echo(x=q)
        return r.o is None, r.yes is True, r.mood is Mood.GLAD

    assert run(composite(invoke), "abc")[0] == (True, False, True)
    assert run(composite(invoke), "ab")[0] == (False, True, False)


def test_optional_outputs_still_run_side_by_side_when_read_late() -> None:
    def invoke(self, q):
        outs = [self.echo(x=f"{q}{i}") for i in range(4)]
        return [o.o for o in outs if o.o is not None]

    result, _, ex = run(composite(invoke), "ab")
    assert result == []
    assert ex.peak >= 3


def test_two_reads_give_one_object() -> None:
    def invoke(self, q):
        r = self.echo(x="a b")
        r.l.append("c")
        return r.l, r.l is r.l

    assert run(composite(invoke))[0] == (["a", "b", "c"], True)


@pytest.mark.parametrize(
    "use", [lambda r: f"{r}", bool, list, len, lambda r: r == 1, lambda r: "a" in r, lambda r: r[0], wait, hash]
)
def test_forgetting_the_output_is_an_error_before_any_work_is_sent(use) -> None:
    def invoke(self, q):
        try:
            return use(self.echo(x="a"))
        except Exception:
            return "swallowed"

    async def main():
        task = composite(invoke)
        ex = executor(task)
        with pytest.raises(TypeError, match=r"read one of its outputs: \.s, \.n"):
            await Driver(task, "q", ex, Store()).answer()
        assert not ex.ran

    if use is not hash:  # hashable, for sets of calls
        asyncio.run(main())


def test_an_output_that_is_not_declared() -> None:
    with pytest.raises(AttributeError, match="Echo has no output 'text'; it has s, n"):
        run(composite(lambda self, q: self.echo(x=q).text))
    with pytest.raises(AttributeError, match="read-only"):
        run(composite(lambda self, q: setattr(self.echo(x=q), "s", 1)))


def test_a_pass_goes_with_its_last_use() -> None:
    """A gateway has hundreds a second: what is left to the cycle collector stays for minutes."""

    def invoke(self, q):
        return self.echo(x=self.echo(x=q).s).s

    made = Pass([], {})
    gone = weakref.ref(made)
    gc.disable()
    try:
        made.run(composite(invoke), "a")
        del made
        assert gone() is None
    finally:
        gc.enable()
