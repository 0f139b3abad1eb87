"""A pass as Graphs that fit a message: its nodes in order, in as many as it takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from cornstalk.messages import Graph, Node, encode

LIMIT: Final = 192 * 1024
"""Bytes of nodes in one Graph; a node alone is smaller (cornstalk/large.py)."""


def graphs(index: int, nodes: Sequence[Node], cuts: Sequence[str], closed: bool) -> Iterator[Graph]:
    """The Graphs from `index` on that add up to a pass. A prefix of them is what a shorter pass would have stored."""
    part: list[Node] = []
    size = 0
    gone = tuple(cuts)
    for node in nodes:
        size += (more := len(encode(node)))
        if part and size > LIMIT:
            yield Graph(index=index, nodes=tuple(part), cuts=gone)
            index, part, size, gone = index + 1, [], more, ()
        part.append(node)
    yield Graph(index=index, nodes=tuple(part), cuts=gone, closed=closed)
