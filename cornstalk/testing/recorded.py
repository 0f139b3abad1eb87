"""A request as it is served: recorded, run and replayed pass by pass, in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from cornstalk.app import App
from cornstalk.large import with_large
from cornstalk.messages import Node
from cornstalk.task import CompositeTask, UnitTask
from cornstalk.testing.driver import Driver
from cornstalk.testing.engines import Engines, Fakes
from cornstalk.testing.executor import Executor
from cornstalk.testing.graph import Graph, graph_of
from cornstalk.testing.loop import run_loop
from cornstalk.testing.served import Served
from cornstalk.testing.store import Crashed, Store
from cornstalk.testing.subject import Subject, subject
from cornstalk.testing.turns import Order, Turns


@dataclass(frozen=True)
class Run:
    """A request that was answered."""

    response: Any
    graph: Graph
    passes: int
    """Runs of `invoke`: at least one, and one more for each graph break. Of a `serve`: those of all its composites."""
    steps: int
    """Facts and stream pieces that were stored: `crash_at` may be 1 to this."""
    components: dict[str, UnitTask]
    """Component id -> task, of those that were called."""
    events: tuple[tuple[str, str], ...]
    """("start" or "end", id of the call) in the order in which it happened."""
    again: Callable[[Collection[str]], Run] = field(repr=False)
    """The same request in which the calls of these ids are held back as long as anything else can go on."""


def run_recorded(
    task: CompositeTask | App,
    request: Any,
    engines: Engines,
    *,
    seed: int = 0,
    strict: bool = False,
    order: Order = "first",
    crash_at: int | None = None,
) -> Run:
    """The answer and how it came about: passes, calls, edges. Raises what ends the request.

    Calls run with the fake engines, each as soon as its inputs are there, and end in this `order` ("shuffled" by
    `seed`). After `crash_at` steps everything but what is stored is lost, and a fresh driver goes on. `strict`: only a
    failure may make a guess wrong, so looking at a result in a way that cannot be seen is an error.
    """
    return record(task, request, engines, seed=seed, strict=strict, order=order, crash_at=crash_at).result()


def inspect(task: CompositeTask | App, request: Any, engines: Engines) -> Graph:
    """The recorded subgraph of a request. `print` it to read it."""
    return run_recorded(task, request, engines).graph


class Life:
    """One driver and its workers over a store, until the request ends or everything crashes."""

    def __init__(self, subject: Subject, fakes: Fakes, store: Store, turns: Turns, strict: bool = False) -> None:
        self.executor = Executor(fakes, subject.task.unit_tasks(), turns)
        self._driver: Driver | Served
        if subject.served is not None:
            self._driver = Served(subject.served, subject.request, self.executor, store, strict)
        else:
            self._driver = Driver(subject.task, subject.request, self.executor, store, strict)

    @property
    def passes(self) -> int:
        return self._driver.passes

    async def answer(self) -> Any:
        """Raises what ends the request, and Crashed."""
        try:
            return await self._driver.answer()
        finally:
            self.executor.crash()
            await asyncio.sleep(0)  # what was cancelled ends


@dataclass
class Recording:
    """One request and all that is stored of it."""

    subject: Subject
    fakes: Fakes
    store: Store
    error: Exception | None = None
    response: Any = None
    passes: int = 0
    ids: dict[str, str] = field(default_factory=dict)
    events: list[tuple[str, str]] = field(default_factory=list)
    again: Callable[[Collection[str]], Run] = field(init=False)

    def result(self) -> Run:
        if self.error is not None:
            raise self.error
        graph = self.graph()
        used = {n.component: n.task for n in graph.nodes}
        return Run(self.response, graph, self.passes, self.store.steps, used, tuple(self.events), self.again)

    def nodes(self) -> list[Node]:
        """What stands of the log, with large inputs in their place."""
        nodes, _ = self.store.log()
        return [replace(n, inputs=with_large(n.inputs, self.store.large)) for n in nodes]

    def graph(self) -> Graph:
        nodes = self.nodes()
        cut = [token for g in self.store.decoded_graphs() for token in g.cuts]
        return graph_of(nodes, self.subject.task.unit_tasks(), self.ids, cut)

    async def live(self, turns: Turns, strict: bool) -> bool:
        """One life. Whether the request has ended: after a crash another one goes on."""
        life = Life(self.subject, self.fakes, self.store, turns, strict)
        try:
            self.response = await life.answer()
        except Crashed:
            return False
        except Exception as error:
            self.error = error
        finally:
            self.passes += life.passes
            self.ids |= life.executor.ids
            self.events += life.executor.events
            self.store.revive()
        return True

    def replay(self) -> Any:
        """The answer of one more life, which finds everything stored. Raises what ends it."""

        async def main() -> Any:
            life = Life(self.subject, self.fakes, self.store, Turns("first", 0))
            return await life.answer()

        return run_loop(main)


def record(
    task: CompositeTask | App,
    request: Any,
    engines: Engines,
    *,
    seed: int = 0,
    strict: bool = False,
    order: Order = "first",
    crash_at: int | None = None,
    held: Collection[str] = (),
) -> Recording:
    """As `run_recorded`; an error of the request is kept, not raised."""

    async def main() -> Recording:
        recording = Recording(subject(task, request), Fakes(engines), Store(crash_at))
        lives = 0
        while not await recording.live(Turns(order, seed + lives, held), strict):
            lives += 1
        return recording

    recording = run_loop(main)
    recording.again = lambda held: record(
        task, request, engines, seed=seed, strict=strict, order=order, held=held
    ).result()
    return recording
