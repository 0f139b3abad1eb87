"""What a test may say about a run."""

from __future__ import annotations

from cornstalk.task import UnitTask
from cornstalk.testing.graph import GraphNode
from cornstalk.testing.recorded import Run

Called = UnitTask | type[UnitTask] | str
"""A task, a task class, or the id of one call."""


def assert_uses(run: Run, *tasks: Called) -> None:
    """Each of these was called. Of guesses that were given up nothing counts."""
    for task in tasks:
        _calls(run, task)


def assert_runs_side_by_side(run: Run, one: Called, other: Called) -> None:
    """Some call of `one` and some call of `other` may be under way at the same time.

    It runs the request again, once with the calls of each held back as long as anything else can go on.
    """
    ones, others = _calls(run, one), _calls(run, other)
    for held in (ones, others):
        events = run.again(held).events
        if any(_overlap(events, a, b) for a in ones for b in others if a != b):
            return
    raise AssertionError(f"{_name(one)} and {_name(other)} run one after the other:\n{run.graph}")


def _calls(run: Run, task: Called) -> list[str]:
    nodes: tuple[GraphNode, ...]
    nodes = tuple(n for n in run.graph.nodes if n.id == task) if isinstance(task, str) else run.graph.of(task)
    if not nodes:
        raise AssertionError(f"{_name(task)} was not called; the calls were\n{run.graph}")
    return [n.id for n in nodes]


def _name(task: Called) -> str:
    if isinstance(task, str):
        return task
    return task.__name__ if isinstance(task, type) else repr(task)


def _overlap(events: tuple[tuple[str, str], ...], one: str, other: str) -> bool:
    """Whether each began before the other ended."""
    at = {event: index for index, event in enumerate(events)}
    never = len(events)
    starts = [at.get(("start", call), never) for call in (one, other)]
    ends = [at.get(("end", call), never) for call in (one, other)]
    return max(starts) < min(ends)
