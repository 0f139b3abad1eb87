"""What the demo found, for a person or as JSON, and what is wrong with it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from cornstalk.cli.console import stdout
from cornstalk.cli.demo_crash import Crash
from cornstalk.cli.demo_requests import Asked
from cornstalk.cli.spans import timeline


@dataclass
class Report:
    """Filled as the demo goes on."""

    question: str
    main: Asked | None = None
    heard_back: str = ""
    crashes: list[Crash] = field(default_factory=list)
    items: int = 0
    events: int = 0
    tensor_bytes: int = 0

    def add(self, asked: Asked) -> None:
        """Counts the nodes, facts and bytes of tensors of a request."""
        nodes = asked.view["nodes"]
        self.items += sum(1 for node in nodes if node["outcome"])
        self.events += asked.view["facts"]
        self.tensor_bytes += sum(node.get("usage", {}).get("tensor_bytes", 0) for node in nodes)

    @property
    def heard(self) -> str:
        return str(self.main.answer.plain.get("question", "")).strip() if self.main else ""

    @property
    def answer(self) -> str:
        return self.main.answer.texts.get("text", "").strip() if self.main else ""

    @property
    def many(self) -> list[Asked]:
        """The requests that went on while a worker was killed."""
        return [one for crash in self.crashes for one in crash.requests]

    @property
    def right(self) -> int:
        """Those whose text is that of the undisturbed request, and which spoke."""
        return sum(
            1 for one in self.many if one.answer.texts.get("text", "").strip() == self.answer and one.answer.sounds
        )

    @property
    def recovery(self) -> float | None:
        return next((crash.recovery for crash in self.crashes if crash.recovery is not None), None)

    def figures(self) -> dict[str, Any]:
        """The object of `--json`."""
        assert self.main is not None
        recovery = self.recovery
        return {
            "heard": self.heard,
            "answer": self.answer,
            "heard_back": self.heard_back,
            "requests": len(self.many),
            "right": self.right,
            "killed_pid": self.crashes[-1].killed_pid,
            "recovery_ms": None if recovery is None else round(recovery * 1000, 1),
            "ttft_ms": round(self.main.ttft * 1000, 1),
            "ttfa_ms": round(self.main.ttfa * 1000, 1),
            "total_ms": round(self.main.total * 1000, 1),
            "items": self.items,
            "events": self.events,
            "tensor_bytes": self.tensor_bytes,
        }

    def wrong(self) -> list[str]:
        """Everything that is not as it should be."""
        wrong = []
        if not self.heard:
            wrong.append("nothing was heard")
        if not self.answer:
            wrong.append("no answer")
        if not self.heard_back:
            wrong.append("nothing was heard of the spoken answer")
        if "capital of france" in self.question.lower():
            wrong += [
                f"{w} does not say Paris" for w in ("answer", "heard_back") if "paris" not in self.figures()[w].lower()
            ]
        if self.right < len(self.many):
            wrong.append(f"{len(self.many) - self.right} of {len(self.many)} requests ended wrong")
        if self.recovery is None:
            wrong.append("no killed worker held an item")
        return wrong


def show(report: Report) -> None:
    """For a person, on standard output."""
    from rich.table import Table

    from cornstalk.cli.waterfall import waterfall

    assert report.main is not None
    console = stdout()
    for name, text in (
        ("asked", report.question),
        ("heard", report.heard),
        ("answer", report.answer),
        ("heard back", report.heard_back),
    ):
        console.print(f"{name:>10}  {text}", markup=False)
    console.print()
    console.print(waterfall(timeline(report.main.view, time.time()), console.width))
    console.print()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("ms", "FIRST TEXT", "FIRST AUDIO", "TOTAL"):
        table.add_column(column, justify="left" if column == "ms" else "right")
    table.add_row("alone", *_milliseconds([report.main]))
    table.add_row(f"median of {len(report.many)} at once, worker killed", *_milliseconds(report.many))
    console.print(table)
    console.print()
    _show_crashes(report, console)
    console.print(f"{report.items} items, {report.events} stored events, {report.tensor_bytes / 1e6:.1f} MB of tensors")


def _show_crashes(report: Report, console: Any) -> None:
    for crash in report.crashes:
        if crash.recovery is None:
            console.print(f"kill -9 of worker {crash.killed_pid}: it held nothing any more")
        else:
            console.print(
                f"kill -9 of worker {crash.killed_pid}, which held {crash.held}: "
                f"running elsewhere after {crash.recovery * 1000:.0f} ms"
            )
    console.print(f"{report.right} of {len(report.many)} requests right")


def _milliseconds(asked: list[Asked]) -> list[str]:
    columns = ([a.ttft for a in asked], [a.ttfa for a in asked], [a.total for a in asked])
    return [f"{sorted(column)[len(column) // 2] * 1000:.0f}" for column in columns]
