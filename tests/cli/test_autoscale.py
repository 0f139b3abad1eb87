"""A whole tree with --autoscale: workers come with the load and go after it, and no item is lost or begun twice."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from tests.cli.scaled import SLOTS, Scaled
from tests.cli.tool import cornstalk
from tests.cli.trees import pid_of, state_of
from tests.waiting import eventually

MOST = 3


async def test_a_burst_scales_out_to_the_limit_and_everything_goes_back_to_zero(tmp_path: Path) -> None:
    async with Scaled.up(tmp_path / "store", min=0, max=MOST, cooldown=2, window=2) as tree:
        await tree.there_are(0)
        await tree.ask("the first one, which finds nobody there")
        burst = await tree.burst("burst", 45)
        await tree.there_are(MOST)
        await burst
        assert len(set(tree.requests)) == 46
        await tree.there_are(0)
        await tree.each_ran_once()
        assert tree.most == MOST
        found = await tree.explained()
        assert (found["replicas"], found["autoscaled"]) == (0, True)
        told = list(reversed(found["decisions"]))
        assert "idle" in [d["rule"] for d in told[:2]]  # first a cooldown, unless nothing had been there for as long
        start = next(d for d in told if d["rule"] == "start")
        assert (start["before"], start["replicas"]) == (0, 1)
        most = next(d for d in told if d["rule"] == "max")
        assert most["asked"] > MOST
        assert all(most["pending"][lane] + most["in_flight"][lane] > 0 for lane in ("interactive", "batch"))
        assert most["policy"]["target"] == SLOTS
        assert (told[-1]["rule"], told[-1]["replicas"]) == ("idle", 0)
        page = await tree.command("explain")
        for words in ("workers wanted 0, ready 0", "target the slots of its engine", "0 -> 1", "no item for 2 s: none"):
            assert words in page
        assert "0 of 0" in cornstalk("status", "--store", tree.store).stdout


async def scaled_in(tree: Scaled, most: int) -> tuple[asyncio.Task[None], dict[str, int]]:
    """All slots of `most` workers are taken, and all but one worker drain. The requests, and the workers before."""
    await tree.ready(most)
    before = tree.workers()
    burst = await tree.burst("long", most * SLOTS, pieces=60, service_ms=100)

    async def all_busy() -> bool:
        load = (await tree.client.get("/components")).json()["components"][0]
        return sum(load["in_flight"].values()) == most * SLOTS

    await eventually(all_busy, within=20)
    await tree.set(min=1, max=1)
    await eventually(lambda: len(tree.draining()) == most - 1, within=20)
    assert not burst.done()
    return burst, before


async def test_a_scale_in_lets_what_runs_end(tmp_path: Path) -> None:
    async with Scaled.up(tmp_path / "store", min=MOST, max=MOST, cooldown=300, window=0) as tree:
        burst, before = await scaled_in(tree, MOST)
        await tree.there_are(1)
        await burst
        await tree.each_ran_once()
        assert set(tree.workers().items()) < set(before.items())
        assert "killed" not in tree.log()


async def test_a_worker_that_dies_while_it_drains_leaves_its_items_to_the_others(tmp_path: Path) -> None:
    async with Scaled.up(tmp_path / "store", min=2, max=2, cooldown=300, window=0) as tree:
        burst, before = await scaled_in(tree, 2)
        (victim,) = tree.draining()
        os.kill(before[victim], signal.SIGKILL)
        await burst
        await tree.there_are(1)
        assert victim not in tree.workers()
        again = [request for request in tree.requests if await tree.attempts(request) > 1]
        assert 1 <= len(again) <= SLOTS


async def test_a_killed_operator_loses_no_item_and_no_decision(tmp_path: Path) -> None:
    async with Scaled.up(tmp_path / "store", min=1, max=MOST, window=2) as tree:
        await tree.ready(1)
        burst = await tree.burst("kept", 20, pieces=20, service_ms=100)
        await tree.there_are(MOST)
        told = (await tree.explained())["decisions"]
        victim = pid_of(tree.store, "operator")
        os.kill(victim, signal.SIGKILL)
        await burst
        assert len(tree.workers()) == MOST  # nobody decides until the lock of the dead one is gone
        await tree.there_are(1)
        await tree.each_ran_once()
        assert pid_of(tree.store, "operator") not in (0, victim)
        assert (await tree.explained())["decisions"][-len(told) :] == told


async def test_a_killed_tree_comes_back_with_the_workers_that_were_wanted(tmp_path: Path) -> None:
    store = tmp_path / "store"
    async with Scaled.up(store, min=2, max=2) as tree:
        await tree.ready(2)
        told = (await tree.explained())["decisions"]
        os.kill(state_of(store).pid, signal.SIGKILL)
    async with Scaled.up(store) as tree:
        assert (await tree.explained())["replicas"] == 2
        await tree.ready(2)
        await tree.ask("after")
        assert (await tree.explained())["decisions"][-len(told) :] == told


async def test_what_cannot_be_meant_is_a_usage_error(tmp_path: Path) -> None:
    async with Scaled.up(tmp_path / "store", min=1, max=2) as tree:
        for flags, words in (
            (("--min", "3"), "max: expected at least min, which is 3"),
            (("--max", "1", "--min", "2"), "max: expected at least min, which is 2"),
            (("--window", "3601"), "window: expected `int` <= 3600"),
        ):
            done = cornstalk("autoscale", "set", tree.component, "--store", tree.store, *flags)
            assert (done.returncode, done.stdout) == (2, "")
            assert words in done.stderr
            assert "Traceback" not in done.stderr
        done = cornstalk("autoscale", "explain", "nothing", "--store", tree.store)
        assert done.returncode == 1
        assert "cornstalk status" in done.stderr
        assert (await tree.explained())["policy"]["max"] == 2
