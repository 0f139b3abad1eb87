"""A request as bars in a terminal: where each node waited in a queue, where it ran, when its first output came."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rich.table import Table

WAIT, READ, RUN, FIRST, NOTHING = "░", "▒", "█", "◆", " "
LEGEND: Final = f"{WAIT} waits in the queue  {READ} reads its inputs  {RUN} runs  {FIRST} first output; times in ms"
OTHER_COLUMNS: Final = 18
"""Characters that the figures and the gaps take beside a bar and its name."""
NARROWEST: Final = 20


@dataclass(frozen=True)
class Span:
    """One node; times in seconds after the first publish of the request. `first` is negative when there was none."""

    name: str
    outcome: str
    published: float
    claimed: float
    started: float
    first: float
    ended: float

    @property
    def wait(self) -> float:
        return self.claimed - self.published

    @property
    def run(self) -> float:
        return self.ended - self.started


def spans(nodes: Sequence[Mapping[str, Any]]) -> list[Span]:
    """The nodes of `GET /requests/{id}` that ran, in the order in which they were published."""
    ran = [node for node in nodes if _time(node, "published") and _time(node, "ended")]
    if not ran:
        return []
    zero = min(_time(node, "published") for node in ran)

    def since(node: Mapping[str, Any], name: str, otherwise: float) -> float:
        at = _time(node, name)
        return at - zero if at else otherwise

    found = []
    for node in ran:
        published, ended = since(node, "published", 0.0), since(node, "ended", 0.0)
        claimed = max(published, since(node, "claimed", published))  # two clocks: the server's and the worker's
        started = max(claimed, since(node, "started", claimed))
        first = since(node, "first", -1.0)
        found.append(Span(node["id"], node["outcome"], published, claimed, started, first, max(started, ended)))
    return sorted(found, key=lambda span: (span.published, span.started))


def _time(node: Mapping[str, Any], name: str) -> float:
    return float(node.get("times", {}).get(name, 0.0))


def _label(span: Span) -> str:
    return span.name if span.outcome == "done" else f"{span.name} ({span.outcome})"


def bar(span: Span, total: float, width: int) -> str:
    """`width` characters for `total` seconds. Every part that took any time shows."""

    def column(at: float) -> int:
        return min(width - 1, int(at / total * width + 1e-6)) if total > 0 else 0

    cells = [NOTHING] * width
    for mark, begin, end in (
        (WAIT, span.published, span.claimed),
        (READ, span.claimed, span.started),
        (RUN, span.started, span.ended),
    ):
        if end > begin:
            last = math.ceil(end / total * width - 1e-6)
            for index in range(column(begin), max(column(begin) + 1, min(width, last))):
                cells[index] = mark
    if span.first >= 0:
        cells[column(span.first)] = FIRST
    return "".join(cells)


def waterfall(nodes: Sequence[Mapping[str, Any]], columns: int) -> Table:
    """The whole request as a table `columns` wide: node, bar, queue wait and run in milliseconds."""
    from rich.table import Table
    from rich.text import Text

    found = spans(nodes)
    width = max(NARROWEST, columns - OTHER_COLUMNS - max((len(_label(span)) for span in found), default=0))
    table = Table(box=None, pad_edge=False, header_style="bold", caption=LEGEND, caption_justify="left")
    table.add_column("NODE", no_wrap=True)
    table.add_column("", no_wrap=True, min_width=width)
    table.add_column("QUEUE", justify="right")
    table.add_column("RUN", justify="right")
    total = max((span.ended for span in found), default=0.0)
    for span in found:
        cells = Text(bar(span, total, width), style="cyan" if span.outcome == "done" else "red")
        table.add_row(Text(_label(span)), cells, f"{span.wait * 1000:.1f}", f"{span.run * 1000:.1f}")
    return table
