"""What survives a crash, in memory: graphs, ends, pieces. Everything in it went through the wire format."""

from __future__ import annotations

import asyncio
from typing import Any

from cornstalk.messages import Error, Graph, Node, Ref, decode, decode_value, encode
from cornstalk.record import Result

Output = tuple[str, str]  # node token, output


class Store:
    """One request's facts, in one sequence as in RUNS. First completion wins; pieces are stored by index."""

    def __init__(self) -> None:
        self.graphs: list[bytes] = []
        self.ends: dict[str, tuple[int, bytes, Error | None]] = {}
        self.pieces: dict[Output, list[Any]] = {}
        self.tensors: dict[Output, Any] = {}
        self.sequence = 0
        self.changed = asyncio.Event()

    def put_graph(self, graph: Graph) -> None:
        self.sequence += 1
        self.graphs.append(encode(graph))

    def put_end(self, token: str, outputs: dict[str, Any] | None = None, error: Error | None = None) -> None:
        if token not in self.ends:
            self.sequence += 1
            self.ends[token] = (self.sequence, encode(outputs), error)
            self.wake()

    def put_piece(self, output: Output, index: int, piece: Any) -> None:
        stored = self.pieces.setdefault(output, [])
        if index == len(stored):  # a second attempt says again what is stored; only what is new counts
            stored.append(piece)
            self.wake()

    def put_tensor(self, output: Output, data: Any) -> Ref:
        self.tensors[output] = data
        return Ref("r", output[0], 0, "a", output[1], 0, "host", "epoch", 0, 0, 4, "float32", (1,))

    def wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def log(self) -> tuple[list[Node], int]:
        """The nodes that are not cut, in order, and how many are cut."""
        graphs = [decode(Graph, g) for g in self.graphs]
        cut = {token for g in graphs for token in g.cuts}
        return [n for g in graphs for n in g.nodes if n.token not in cut], len(cut)

    def results(self) -> dict[str, Result]:
        return {t: Result(seq, decode_value(outputs), error) for t, (seq, outputs, error) in self.ends.items()}

    def failed_since(self, known: dict[str, Result]) -> bool:
        return any(error is not None for t, (_, _, error) in self.ends.items() if t not in known)


def error_of(error: Exception, node: Node) -> Error:
    return Error(code="failed", message=f"{type(error).__name__}: {error}", component=node.component, node=node.token)


def whole(pieces: list[Any]) -> Any:
    """What the pieces of a stream add up to."""
    total = pieces[0]
    for piece in pieces[1:]:
        total = total + piece
    return total
