"""Whether an app gives the answers of ordinary Python, whatever ends first and wherever a gateway dies."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final

from cornstalk.app import App
from cornstalk.arguments import shown
from cornstalk.messages import Edge, Extension, Node, encode, substitute
from cornstalk.record import Result
from cornstalk.task import CompositeTask
from cornstalk.testing.compare import Ending, difference, ending
from cornstalk.testing.engines import Engines
from cornstalk.testing.plain import PlainRun
from cornstalk.testing.recorded import Recording, Run, record
from cornstalk.testing.subject import subject
from cornstalk.values import wire

SHUFFLES: Final = 8
CRASHES: Final = 100
"""Places at which a run is crashed: each step, or as many spread evenly over a longer run."""
_BRANCH: Final = re.compile(r"~\d+$")
_CHANGES: Final = (
    "Something in it changes from run to run (time, random, uuid, a global, the order of a set): "
    "in invoke, use now(), rng() or new_id() of cornstalk."
)


class CheckFailed(AssertionError):
    """Raised by `check`: says which two runs differ, and where."""


def check(task: CompositeTask | App, request: Any, engines: Engines) -> Run:
    """Runs one request in every way that serving it may, and compares; raises CheckFailed for the first difference.

    In order: ordinary Python; recorded and replayed; its last pass, or its `serve`, once more (finds a clock, chance or
    a global that reaches only the response); strict (finds looking at results that cannot be seen); ends in reverse and
    in shuffled orders; a crash after each step. Returns the recorded run. A request that ends with an error is checked
    in the same way; when all agree on it, it is raised.
    """
    plain, asked = PlainRun(engines), subject(task, request)
    expected = ending(lambda: plain.response(asked))
    first = record(task, request, engines)
    _twice(first)
    _same("plain Python and recorded", expected, first)
    if isinstance(task, App):
        _travels(first)
    if expected.error is None:
        _same_calls(plain, first)
    for order in ("first", "last"):
        _same("plain Python and strict", expected, record(task, request, engines, strict=True, order=order))
    _same("plain Python and calls ending in reverse", expected, record(task, request, engines, order="last"))
    for seed in range(SHUFFLES):
        shuffled = record(task, request, engines, order="shuffled", seed=seed)
        _same(f"plain Python and calls ending shuffled (seed {seed})", expected, shuffled)
    steps = first.store.steps
    for step in range(1, steps + 1, -(-steps // CRASHES) or 1):
        crashed = record(task, request, engines, crash_at=step)
        _same(f"plain Python and a crash after step {step} of {steps}", expected, crashed)
    return first.result()


def _ended(run: Recording) -> Ending:
    if isinstance(run.error, AssertionError):
        raise run.error
    return Ending(run.response, run.error)


def _same(runs: str, expected: Ending, run: Recording) -> None:
    if why := difference(expected, _ended(run), in_order=run.subject.served is None):
        raise CheckFailed(f"{runs} differ: {why}\ncalls:\n{run.graph()}")


def _twice(run: Recording) -> None:
    """Once more: with all results known, only what is no function of them can differ."""
    if run.error is not None:
        return
    graphs, what = len(run.store.graphs), "invoke" if run.subject.served is None else "serve"
    again = ending(run.replay)
    if why := difference(Ending(run.response), again):
        raise CheckFailed(f"{what} gives different answers for the same results: {why}\n{_CHANGES}")
    if len(run.store.graphs) > graphs:
        raise CheckFailed(f"{what} makes other calls when it runs again: now\n{run.graph()}\n{_CHANGES}")


def _travels(run: Recording) -> None:
    if run.error is None:
        try:
            encode(wire(run.response, _whole))
        except TypeError as error:
            raise CheckFailed(f"the response cannot be sent to a client: {error}") from error


def _whole(value: Any) -> Any:
    if type(value) in (str, bytes):
        return value
    raise TypeError(f"it holds a {type(value).__name__}")


def _same_calls(plain: PlainRun, run: Recording) -> None:
    """Both made the same calls, though the response may not tell: a cache in a global would leave some out."""
    made, recorded = plain.made, run.nodes()
    if run.subject.served is not None:  # its composites run side by side: each has its own order
        made, recorded = _by_composite(made), _by_composite(recorded)
    pairs = zip_longest(_calls(made, plain.results), _calls(recorded, run.store.results()), fillvalue=("nothing",))
    for one, other in pairs:
        if one != other:
            raise CheckFailed(f"plain Python and recorded make different calls: {one[0]}, then {other[0]}")


def _by_composite(nodes: Iterable[Node]) -> list[Node]:
    return sorted(nodes, key=lambda node: node.id.partition("/")[0])


def _calls(nodes: Sequence[Node], results: Mapping[str, Result]) -> list[tuple[Any, ...]]:
    """(call with its inputs, for messages; component; inputs), without the numbers of guesses that were given up."""
    ids = {n.token: _BRANCH.sub("", n.id) for n in nodes}

    def known(extension: Extension) -> Any:
        if not isinstance(extension, Edge):
            return extension
        value = (results[extension.node].outputs or {}).get(extension.output) if extension.node in results else None
        return f"<{ids[extension.node]}.{extension.output}>" if value is None or isinstance(value, Extension) else value

    calls: list[tuple[Any, ...]] = []
    for node in nodes:
        inputs = substitute(node.inputs, known)
        calls.append((f"{ids[node.token]}({shown(inputs, {})}) at {node.line}", node.component, encode(inputs)))
    return calls
