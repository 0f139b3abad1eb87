"""As many processes as are wanted, on real ones: which of them go, under which number others come."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from broker.errors import ReadTimeout
from cornstalk.cli.process import Child, Kept
from cornstalk.cli.procfs import start_time
from cornstalk.cli.workers import Workers
from cornstalk.records import ComponentRecord
from tests.cli.test_process import SLEEP, STUBBORN
from tests.waiting import eventually


class House:
    """Workers of component `c`, whose heartbeats the test writes."""

    def __init__(self, tmp_path: Path) -> None:
        self.running: dict[str, int] | None = {}
        self.argv = SLEEP
        self.workers = Workers(self._read, self._busy, self._spawn, None, lambda: None)
        self._logs = tmp_path

    async def _read(self) -> Mapping[str, ComponentRecord]:
        raise AssertionError("nobody follows here")

    async def _busy(self) -> Mapping[int, int]:
        if self.running is None:
            raise ReadTimeout("away")
        return {pid: self.running.get(name, 0) for name, pid in self.pids().items()}

    def _spawn(self, component: str, index: int) -> Kept:
        name = f"{component}.{index}"
        return Kept(Child(name, self.argv, dict(os.environ), self._logs), lambda: None)

    async def want(self, replicas: int, **more: str) -> None:
        record = ComponentRecord(id="c", kind="null", task="t", replicas=replicas, **more)  # type: ignore[arg-type]
        await self.workers.reconcile({"c": record})

    def pids(self) -> dict[str, int]:
        return {k.process.name: k.process.pid for k in self.workers.kept if start_time(k.process.pid)}

    async def there_are(self, *names: str) -> None:
        await eventually(lambda: sorted(self.pids()) == sorted(names))


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    house = House(tmp_path)
    yield house
    await house.workers.stop(0.1)


async def test_those_in_which_least_runs_go_first_and_of_equals_the_youngest(house: House) -> None:
    await house.want(5)
    await house.there_are("c.0", "c.1", "c.2", "c.3", "c.4")
    house.running = {"c.0": 0, "c.1": 3, "c.2": 1, "c.3": 2, "c.4": 3}
    await house.want(3)
    await house.there_are("c.1", "c.3", "c.4")
    house.running = {}
    await house.want(1)
    await house.there_are("c.1")
    await house.want(3)
    await house.there_are("c.0", "c.1", "c.2")


async def test_the_number_of_one_that_drains_is_not_given_to_another(house: House) -> None:
    house.argv = STUBBORN
    await house.want(2)
    await house.there_are("c.0", "c.1")
    await eventually(lambda: (house._logs / "c.1.log").exists() and "on" in (house._logs / "c.1.log").read_text())
    house.running = {"c.0": 1}
    await house.want(1)
    house.argv = SLEEP
    await house.want(2)
    await house.there_are("c.0", "c.1", "c.2")  # c.1 drains: it is given ten minutes


async def test_nobody_goes_while_it_is_not_known_who_is_busy(house: House) -> None:
    await house.want(2)
    house.running = None
    with pytest.raises(ReadTimeout):
        await house.want(1)
    await house.there_are("c.0", "c.1")
    await house.want(0)  # all of them: there is nothing to choose
    await house.there_are()


async def test_a_component_that_is_going_has_no_workers(house: House) -> None:
    await house.want(2)
    await house.want(2, state="draining")
    await house.there_are()
    await house.want(1)
    await house.there_are("c.0")
    await house.workers.reconcile({})
    await house.there_are()
