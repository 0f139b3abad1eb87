"""A dead driver's log is all that the next one needs."""

from __future__ import annotations

import asyncio
import random

import pytest

from cornstalk import TaskError, new_id, now, rng
from cornstalk.messages import Error
from cornstalk.record import Pass, Result
from cornstalk.testing.driver import Driver
from cornstalk.testing.store import Store
from tests.cornstalk.model.apps import composite, executor, run


def looping(self, q):
    notes = []
    for i in range(4):
        s = self.echo(x=f"{q}{i}{len(notes)}").s
        if len(s) > 2:
            try:
                notes.append(self.risky(x=s).s if i % 2 else s)
            except TaskError:
                notes.append(self.echo(x="instead of " + s).s)
    return notes, [(self.eye(image=n), n)[1] for n in notes]


@pytest.mark.parametrize("seed", range(25))
def test_another_driver_goes_on_after_a_crash(seed: int) -> None:
    async def main():
        store, chance, crashes = Store(), random.Random(seed), 0
        while True:
            task = composite(looping)
            ex = executor(task, seed + crashes)
            job = asyncio.create_task(Driver(task, "q", ex, store).answer())
            for _ in range(chance.randrange(1, 25)):
                await asyncio.sleep(0)
            if job.done() or crashes > 6:
                return await job
            job.cancel()
            ex.crash()  # log and events stay, everything else is gone
            crashes += 1
            await asyncio.gather(job, return_exceptions=True)

    assert asyncio.run(main()) == run(composite(looping), "q")[0]


def test_a_resume_runs_nothing_twice_that_is_done() -> None:
    async def main():
        store, task = Store(), composite(looping)
        ex = executor(task)
        first = asyncio.create_task(Driver(task, "q", ex, store).answer())
        while len(store.ends) < 3:
            await store.changed.wait()
        first.cancel()
        ex.crash()
        done = {ex.ids[token] for token in store.ends}
        again = executor(task)
        result = await Driver(composite(looping), "q", again, store).answer()
        assert not done & set(again.ran)
        return result

    assert asyncio.run(main()) == run(composite(looping), "q")[0]


def guess(self, q):
    try:
        self.risky(x="a")
    except TaskError:
        return self.echo(x="plan b").s
    return self.echo(x="plan a").s


def failed_pass(log, cuts, seq):
    results = {log[0].token: Result(seq, error=Error(code="x", message="no", node=log[0].token))}
    return Pass(log, results, cuts=cuts)


def test_cuts_and_new_ids_follow_from_the_log_alone() -> None:
    first = Pass([], {})
    first.run(composite(guess), "q")
    second = failed_pass(first.new_nodes, 0, 9)
    second.run(composite(guess), "q")
    assert second.cuts == (first.new_nodes[1].token,)
    assert [n.id for n in second.new_nodes] == ["echo#0~1"]
    assert [n.id for n in second.nodes] == ["risky#0", "echo#0~1"]
    assert second.new_nodes[0].seen == 9
    again = failed_pass(second.nodes, 1, 9)
    outcome = again.run(composite(guess), "q")
    assert (outcome.kind, again.new_nodes, again.cuts) == ("done", (), ())


def test_a_result_that_was_known_when_the_guess_was_made_cuts_nothing() -> None:
    def invoke(self, q):
        s = self.echo(x="a").s
        if s:
            self.echo(x=q)
        return self.echo(x="end").s

    log = Pass([], {})
    log.run(composite(invoke), "one")
    token = log.new_nodes[0].token
    known = {token: Result(3, {"s": "a"})}
    second = Pass(log.new_nodes, known)
    second.run(composite(invoke), "one")
    third = Pass(second.nodes, known)
    assert third.run(composite(invoke), "another").kind == "raise"


def test_tokens_and_seeds_are_functions_of_id_and_request() -> None:
    def nodes(seed):
        first = Pass([], {}, request_id="r", seed=seed)
        first.run(composite(looping), "q")
        return first.new_nodes

    one, again, other = nodes(1), nodes(1), nodes(2)
    assert one == again
    assert [n.token for n in one] == [n.token for n in other]
    assert [n.seed for n in one] != [n.seed for n in other]
    for node in one:
        assert len(node.token) == 13
        assert set(node.token) <= set("abcdefghijklmnopqrstuvwxyz234567")
        assert 0 <= node.seed < 2**63
        assert node.line.startswith("test_record_resume.py:")


def test_time_and_chance_of_cornstalk_are_the_same_in_every_pass() -> None:
    drawn = []

    def invoke(self, q):
        drawn.append((now(), rng().random(), rng().random(), new_id(), new_id()))
        return self.echo(x=list(drawn[-1][1:])).n + 1, now().year

    result, driver, _ = run(composite(invoke), "q")
    assert driver.passes == 2
    assert len(set(drawn)) == 1
    assert len(set(drawn[0])) == 5
    assert result[1] == 2026  # when requests of tests are accepted
    for outside in (now, rng, new_id):
        with pytest.raises(RuntimeError, match="inside invoke"):
            outside()


def test_chance_differs_between_requests_and_composite_calls() -> None:
    def draw(request_id):
        drawn = []
        Pass([], {}, request_id=request_id).run(composite(lambda self, q: drawn.append(new_id())), "q")
        return drawn[0]

    assert draw("a") == draw("a") != draw("b")
