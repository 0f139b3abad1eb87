"""A pass that makes other calls than the one before, for no new result, is found; so is what is kept between passes."""

from __future__ import annotations

import contextvars
import functools
import random
import threading
import time
import uuid
from typing import Any

import pytest

from cornstalk import CompositeTask, TaskError, wait
from cornstalk.errors import NondeterministicInvoke, RecordError, StaleResult, TooManyCalls
from cornstalk.record import Pass
from tests.cornstalk.model.apps import Echo, composite, run


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

    with pytest.raises(TooManyCalls, match=r"more than 1000 calls \(at test_record_determinism.py:"):
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
