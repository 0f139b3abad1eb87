"""A request as bars in a terminal: where each node waited in a queue, where it ran, when its first output came."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from cornstalk.cli.spans import Span, Timeline

if TYPE_CHECKING:
    from rich.table import Table

MARKS: Final = {"wait": "░", "read": "▒", "run": "█", "open": "╌"}
FIRST, NOTHING = "◆", " "
LEGEND: Final = (
    f"{MARKS['wait']} queue  {MARKS['read']} fetch  {MARKS['run']} run  {MARKS['open']} one of these  "
    f"{FIRST} first piece;  ms, FIRST from the beginning"
)
STYLES: Final = {"done": "cyan", "": "yellow", "lost": "magenta"}
"""By outcome; any other is red."""
OTHER_COLUMNS: Final = 44
"""Characters that the figures and the gaps take beside a bar and its name."""
NARROWEST: Final = 20


def bar(span: Span, total: float, width: int) -> str:
    """`width` characters for `total` seconds. Every part that took any time shows."""

    def column(at: float) -> int:
        return min(width - 1, int(at / total * width + 1e-6)) if total > 0 else 0

    cells = [NOTHING] * width
    for kind, begin, end in span.parts:
        if end > begin:
            last = math.ceil(end / total * width - 1e-6)
            for index in range(column(begin), max(column(begin) + 1, min(width, last))):
                cells[index] = MARKS[kind]
    if span.first is not None:
        cells[column(max(0.0, span.first))] = FIRST
    return "".join(cells)


def waterfall(line: Timeline, columns: int) -> Table:
    """The whole request as a table `columns` wide: node, bar, and its parts in milliseconds."""
    from rich.table import Table
    from rich.text import Text

    width = max(NARROWEST, columns - OTHER_COLUMNS - max((len(span.label) for span in line.spans), default=0))
    table = Table(box=None, pad_edge=False, header_style="bold", caption=LEGEND, caption_justify="left")
    table.add_column("NODE", no_wrap=True)
    table.add_column("", no_wrap=True, min_width=width)
    for name in ("QUEUE", "FETCH", "RUN", "FIRST", "CHUNKS"):
        table.add_column(name, justify="right", no_wrap=True)
    for span in line.spans:
        cells = Text(bar(span, line.total, width), style=STYLES.get(span.outcome, "red"))
        figures = (span.wait, span.read, span.run, span.first)
        chunks = "" if span.chunks is None else str(span.chunks)
        table.add_row(Text(span.label), cells, *(milliseconds(figure) for figure in figures), chunks)
    return table


def milliseconds(seconds: float | None) -> str:
    """ "" when it is not known."""
    return "" if seconds is None else f"{seconds * 1000:.1f}"
