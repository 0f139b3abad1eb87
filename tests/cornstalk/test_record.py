"""The rules of record and replay: what runs side by side, what a break costs, what a pass leaves behind."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from cornstalk import wait
from cornstalk.record import Pass
from cornstalk.testing.driver import Driver
from cornstalk.testing.store import Store
from tests.cornstalk.model.apps import Mood, composite, executor, run

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
