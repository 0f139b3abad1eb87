"""A request as it is served: recorded, run and replayed pass by pass, in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from cornstalk.app import App
from cornstalk.large import with_large
from cornstalk.messages import Node
from cornstalk.record import Outcome
from cornstalk.task import CompositeTask, UnitTask
from cornstalk.testing.driver import Driver, new_pass
from cornstalk.testing.engines import Engines, Fakes
from cornstalk.testing.executor import Executor
from cornstalk.testing.graph import Graph, graph_of
from cornstalk.testing.plain import subject
from cornstalk.testing.store import Crashed, Store
from cornstalk.testing.turns import Order, Turns


@dataclass(frozen=True)
class Run:
    """A request that was answered."""

    response: Any
    graph: Graph
    passes: int
    """Runs of `invoke`: at least one, and one more for each graph break."""
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


@dataclass
class Recording:
    """One request and all that is stored of it."""

    composite: CompositeTask
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
        return graph_of(nodes, self.composite.unit_tasks(), self.ids, cut)

    def replay(self, request: Any) -> Outcome:
        """One more complete pass over what is stored."""
        return new_pass(self.store).run(self.composite, request)


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
    composite, request = subject(task, request)
    fakes = Fakes(engines)

    async def main() -> Recording:
        recording = Recording(composite, Store(crash_at))
        crashes = 0
        while True:
            executor = Executor(fakes, composite.unit_tasks(), Turns(order, seed + crashes, held))
            driver = Driver(composite, request, executor, recording.store, strict)
            try:
                recording.response = await driver.run()
            except Crashed:
                crashes += 1
                continue
            except Exception as error:
                recording.error = error
            finally:
                executor.crash()
                await asyncio.sleep(0)  # what was cancelled ends
                recording.passes += driver.passes
                recording.ids |= executor.ids
                recording.events += executor.events
                recording.store.revive()
            return recording

    recording = _run_loop(main)
    recording.again = lambda held: record(
        task, request, engines, seed=seed, strict=strict, order=order, held=held
    ).result()
    return recording


def _run_loop(main: Callable[[], Coroutine[Any, Any, Recording]]) -> Recording:
    """Runs to the end; inside an async test in a thread of its own, for there a loop is running."""
    if not _in_loop():
        return asyncio.run(main())
    with ThreadPoolExecutor(1, "cornstalk.testing") as thread:
        return thread.submit(asyncio.run, main()).result()


def _in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
