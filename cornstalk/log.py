"""The calls of one request in the order in which they were recorded, each composite call with its own part."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from typing import Any, Final

from cornstalk.messages import Node
from cornstalk.task import CompositeTask, UnitTask, short_hash

MAX_NODES: Final = 4096
"""Nodes of a request, cut ones included."""


class Log:
    """The stored log, which never changes, and what one pass adds to it and cuts from it.

    `cut_before` nodes were cut by earlier passes: a new id carries the number of all cuts so far as its branch, so late
    events of a cut guess cannot be mistaken for those of the call that took its place, also after a resume.
    """

    def __init__(self, stored: Sequence[Node], cut_before: int) -> None:
        self.stored = stored
        self.new: list[Node] = []
        self.cut: list[str] = []  # tokens
        self._cut_before = cut_before
        self._parts: dict[str, list[Node]] = {}
        for node in stored:
            self.part(path_of(node)).append(node)

    def part(self, path: str) -> list[Node]:
        """The calls of one composite call that stand; grows and shrinks with the pass."""
        return self._parts.setdefault(path, [])

    @property
    def full(self) -> bool:
        return self._cut_before + len(self.stored) + len(self.new) >= MAX_NODES

    @property
    def nodes(self) -> list[Node]:
        """All that stands."""
        gone = set(self.cut)
        return [n for n in self.stored if n.token not in gone] + self.new

    def add(self, key: str, task: UnitTask, sent: dict[str, Any], line: str, seed: int, seen: int) -> Node:
        """Records a call. `key` is its path, task and ordinal; `seed` that of the request."""
        branch = self._cut_before + len(self.cut)
        id = f"{key}~{branch}" if branch else key
        node = Node(
            id=id,
            token=short_hash(id.encode(), 8),
            component=task.component,
            line=line,
            seed=_number(f"{seed}:{id}"),
            seen=seen,
            inputs=sent,
            outputs={n: p.kind for n, p in task.outputs.items()},
        )
        self.new.append(node)
        self.part(path_of(node)).append(node)
        return node

    def give_up(self, nodes: Sequence[Node]) -> None:
        """Cuts stored calls of one composite call."""
        gone = {n.token for n in nodes}
        self.cut += [n.token for n in nodes]
        part = self.part(path_of(nodes[0]))
        part[:] = [n for n in part if n.token not in gone]

    def leftovers(self, visited: Collection[str]) -> list[list[Node]]:
        """Stored calls that stand and did not happen in this pass, by composite call."""
        rest: dict[str, list[Node]] = {}
        for node in self.stored:
            if node.token not in visited and node.token not in self.cut:
                rest.setdefault(path_of(node), []).append(node)
        return list(rest.values())


class Scope:
    """One call of a composite task in a pass: its own part of the log, its own ordinals, its own breaks."""

    __slots__ = ("at", "breaks", "calls", "counts", "part", "path", "task")

    def __init__(self, task: CompositeTask, path: str, part: list[Node]) -> None:
        self.task, self.path, self.part = task, path, part
        self.at = 0  # the next logged call
        self.calls = 0
        self.counts: dict[str, int] = {}
        self.breaks: list[str] = []  # tokens it waits for; not empty: this call is dead

    def ordinal(self, name: str) -> int:
        count = self.counts[name] = self.counts.get(name, -1) + 1
        return count


def path_of(node: Node) -> str:
    """The composite call that made a call: "" or ending in "/"."""
    return node.id[: node.id.rfind("/") + 1]


def is_call(node: Node, key: str) -> bool:
    """Whether the node is the call of this path, task and ordinal, on whatever branch."""
    return node.id == key or node.id.startswith(f"{key}~")


def _number(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1  # 63 bits: fits everywhere
