"""The recorded subgraph of a request, to look at and to compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cornstalk.messages import Edge, Node, substitute
from cornstalk.task import UnitTask


@dataclass(frozen=True)
class Source:
    """What stands in the inputs of a call for a result of another call: an edge of the graph."""

    node: str  # id
    output: str
    stream: bool  # the call may start at the first piece

    def __repr__(self) -> str:
        return f"<{self.node}.{self.output}{' as it arrives' if self.stream else ''}>"


@dataclass(frozen=True)
class GraphNode:
    """One call of a unit task. `id`: path of the composite call, task, ordinal: "topic#0/small#1"."""

    id: str
    task: UnitTask
    line: str  # "file.py:12", where it was called
    inputs: dict[str, Any]
    sources: tuple[Source, ...]  # those in the inputs, in order

    @property
    def component(self) -> str:
        return self.task.component

    def __str__(self) -> str:
        return f"{self.id}({', '.join(f'{k}={_short(v)}' for k, v in self.inputs.items())}) at {self.line}"


@dataclass(frozen=True)
class Graph:
    """All calls of a request in the order in which they were recorded, without the guesses that were given up."""

    nodes: tuple[GraphNode, ...]
    cut: tuple[str, ...] = ()
    """Ids of guesses: calls whose work was cancelled when an earlier result, mostly a failure, changed the way."""

    @property
    def edges(self) -> tuple[tuple[Source, str], ...]:
        """(output, id of the call that takes it)."""
        return tuple((source, node.id) for node in self.nodes for source in node.sources)

    def of(self, task: UnitTask | type[UnitTask]) -> tuple[GraphNode, ...]:
        """The calls of one component, or of all components of a task class."""
        if isinstance(task, UnitTask):
            return tuple(n for n in self.nodes if n.component == task.component)
        return tuple(n for n in self.nodes if isinstance(n.task, task))

    def __str__(self) -> str:
        return "\n".join(map(str, self.nodes)) or "no calls"


def graph_of(nodes: Sequence[Node], tasks: Mapping[str, UnitTask], ids: Mapping[str, str], cut: Sequence[str]) -> Graph:
    """`nodes`: without marks for large inputs; `tasks`: component -> task; `ids`: token -> id, of cut nodes too; `cut`:
    tokens.
    """
    return Graph(tuple(_node(n, tasks[n.component], ids) for n in nodes), tuple(ids[token] for token in cut))


def _node(node: Node, task: UnitTask, ids: Mapping[str, str]) -> GraphNode:
    sources: list[Source] = []

    def source(extension: Any) -> Any:
        if not isinstance(extension, Edge):
            return extension
        sources.append(Source(ids[extension.node], extension.output, extension.stream))
        return sources[-1]

    inputs = {k: v for k, v in substitute(node.inputs, source).items() if v != task.defaults.get(k, _NONE)}
    return GraphNode(node.id, task, node.line, inputs, tuple(sources))


_NONE = object()


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
