"""What survives a crash, in memory: graphs, ends, pieces. Everything in it went through the wire format."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from typing import Any, Final, NoReturn

from cornstalk.large import Spooled, value_of
from cornstalk.messages import Error, Graph, Node, Ref, Upload, decode, decode_value, encode
from cornstalk.record import Result

REQUEST: Final = "test"
"""Id of every request of a test: `rng` and `new_id` follow from it."""

Output = tuple[str, str]  # node token, output


class Crashed(BaseException):
    """Raised out of whatever would go on after a crash."""


class Store:
    """One request's facts, in one sequence as in RUNS. First completion wins; pieces are stored by index.

    A *step* is one thing stored. Right after step `crash_at` everybody who uses the store gets Crashed, until `revive`.
    """

    def __init__(self, crash_at: int | None = None) -> None:
        self.graphs: list[bytes] = []
        self.ends: dict[str, tuple[int, bytes, Error | None]] = {}
        self.pieces: dict[Output, list[Any]] = {}
        self.tensors: dict[Output, Any] = {}
        self.large: dict[Upload, Any] = {}  # what stands behind the marks in the inputs of nodes
        self.sequence = 0
        self.steps = 0
        self.dead = False
        self.closed = False  # the last pass came to its end
        self.changed = asyncio.Event()
        self._crash_at = crash_at
        self._mistake: AssertionError | None = None

    def put_graph(self, graph: Graph, large: Spooled) -> None:
        self.check()
        self.large |= {mark: value_of(mark, data) for mark, data in large.items()}
        self.sequence += 1
        self.graphs.append(encode(graph))
        self.closed = graph.closed
        self._stored()

    def put_end(self, token: str, outputs: dict[str, Any] | None = None, error: Error | None = None) -> None:
        self.check()
        if token not in self.ends:
            self.sequence += 1
            self.ends[token] = (self.sequence, encode(outputs), error)
            self._stored()

    def put_piece(self, output: Output, index: int, piece: Any) -> None:
        self.check()
        stored = self.pieces.setdefault(output, [])
        if index == len(stored):  # a second attempt says again what is stored; only what is new counts
            stored.append(piece)
            self._stored()

    def put_tensor(self, output: Output, data: Any) -> Ref:
        self.tensors[output] = data
        return Ref(REQUEST, output[0], 0, "a", output[1], 0, "host", "epoch", 0, 0, 4, "float32", (1,))

    def _stored(self) -> None:
        self.steps += 1
        self.dead = self.steps == self._crash_at
        self.wake()
        self.check()

    def wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def check(self) -> None:
        """Raises Crashed after the crash, and the AssertionError of a fake engine."""
        if self.dead:
            raise Crashed
        if self._mistake is not None:
            raise self._mistake

    async def change(self) -> None:
        """Until something was stored. Raises as `check`."""
        self.check()
        await self.changed.wait()
        self.check()

    async def over(self) -> NoReturn:
        """Until there is something to raise: as `check`."""
        while True:
            await self.change()

    async def read(self, output: Output) -> AsyncIterator[Any]:
        """The pieces of an output as they are stored, to the end of its node. Raises as `check`."""
        at = 0
        while True:
            have = self.pieces.get(output, [])
            while at < len(have):
                yield have[at]
                at += 1
            if output[0] in self.ends:
                return
            await self.change()

    def revive(self) -> None:
        """The next life begins, maybe in another event loop, with all that is stored."""
        self.dead = False
        self.changed = asyncio.Event()

    def mistake(self, error: AssertionError) -> None:
        """The test itself is wrong, or has found what it looks for: the request ends with this, uncaught."""
        self._mistake = error
        self.wake()

    def log(self, path: str = "") -> tuple[list[Node], int]:
        """The nodes of one composite call (or all) that are not cut, in order, and how many are cut."""
        graphs = self.decoded_graphs()
        cut = {token for g in graphs for token in g.cuts}
        nodes = [n for g in graphs for n in g.nodes if n.id.startswith(path)]
        standing = [n for n in nodes if n.token not in cut]
        return standing, len(nodes) - len(standing)

    def streams(self) -> dict[str, Output]:
        """Where the stream fields of a serve's response come from, once it has returned."""
        return {path: source for g in self.decoded_graphs() for path, source in g.streams.items()}

    def decoded_graphs(self) -> list[Graph]:
        return [decode(Graph, g) for g in self.graphs]

    def results(self) -> dict[str, Result]:
        return {t: Result(seq, decode_value(outputs), error) for t, (seq, outputs, error) in self.ends.items()}

    def failed(self, tokens: Collection[str]) -> bool:
        """Whether any of these nodes has failed."""
        return any(t in self.ends and self.ends[t][2] is not None for t in tokens)
