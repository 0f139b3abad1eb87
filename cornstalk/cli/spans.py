"""What `GET /requests/{id}` tells of each node, on one time line. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

View = Mapping[str, Any]
"""The JSON of `GET /requests/{id}`."""


class Part(NamedTuple):
    """A stretch of a span: "wait" in the queue, "read" of its inputs, "run", or "open": which of them is not known."""

    kind: str
    begin: float
    end: float


@dataclass(frozen=True)
class Span:
    """One generation of a node. Times in seconds after the beginning of the request."""

    name: str
    outcome: str
    """Of the node; "lost" of a generation that had to run again; "" of one that has not ended."""
    published: float
    """When the item was put into its queue; when it could be, if no worker told."""
    claimed: float
    started: float
    ended: float
    first: float | None
    """When the first piece of a stream was stored."""
    parts: tuple[Part, ...]
    token: str = ""
    gen: int = 0
    restarts: int = 0
    """Starts after the death of a worker."""
    cause: str = ""
    """Why it failed or was lost."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """The node as the gateway tells it."""

    @property
    def wait(self) -> float | None:
        """Seconds in the queue; None when that is not known."""
        return self._of("wait")

    @property
    def read(self) -> float | None:
        """Seconds from the claim to the start: inputs are fetched, outputs opened."""
        return self._of("read")

    @property
    def run(self) -> float | None:
        return self._of("run")

    def _of(self, kind: str) -> float | None:
        return next((part.end - part.begin for part in self.parts if part.kind == kind), None)

    @property
    def chunks(self) -> int | None:
        """Stored pieces of its stream outputs; None if it has none, or has not ended well."""
        told: Mapping[str, int] = self.about.get("chunks", {})
        return sum(told.values()) if told else None

    @property
    def label(self) -> str:
        """Name, what sets it apart from other generations, and how it ended unless well."""
        marks = [self.outcome] if self.outcome not in ("", "done") else []
        marks += [f"run {self.gen + 1}"] if self.gen else []
        marks += [f"{self.restarts} restart{'s' if self.restarts > 1 else ''}"] if self.restarts else []
        return f"{self.name} ({', '.join(marks)})" if marks else self.name


class Timeline(NamedTuple):
    """A request from its acceptance to its end, or to now."""

    zero: float
    """Unix seconds."""
    total: float
    spans: list[Span]


def timeline(view: View, now: float) -> Timeline:
    """`now`: Unix seconds, where what still runs is cut off."""
    times = view.get("times", {})
    rows = [(node, about) for node in view["nodes"] for about in _generations(node)]
    known = [at for _, about in rows for at in about["times"].values() if at]
    zero = min([*known, *([times["accepted"]] if times.get("accepted") else [])], default=now)
    end = times.get("finished") or max([now if view["status"] == "running" else 0.0, *known], default=now)
    last = max(0.0, end - zero)
    found = [_span(node, about, zero, last) for node, about in rows]
    total = max([last, *(span.ended for span in found)])
    return Timeline(zero, total, sorted(found, key=_begun))


def _begun(span: Span) -> float:
    """Those of one pass that could run at once stay in the order in which they were called."""
    at: float = span.about["times"].get("ready", 0.0)
    return at or span.about["times"].get("published", 0.0) or span.about["times"].get("recorded", 0.0)


def _generations(node: View) -> Iterator[View]:
    for earlier in node.get("earlier", ()):
        yield {**earlier, "outcome": "lost"}
    yield node


def _span(node: View, about: View, zero: float, last: float) -> Span:
    times = {name: at - zero for name, at in about["times"].items() if at}
    published = times.get("published", times.get("ready", times.get("recorded", 0.0)))
    ended = times.get("ended", times.get("stored", last))
    claimed = max(published, times.get("claimed", published))  # two clocks: the server's and the worker's
    started = max(claimed, times.get("started", claimed))
    ended = max(started, ended)
    if "ended" in times:
        parts = [Part("wait", published, claimed), Part("read", claimed, started), Part("run", started, ended)]
    elif "ready" in times:
        parts = [Part("open", published, ended)]
    else:
        parts = []  # it waits for another node
    return Span(
        name=node["id"],
        outcome=about["outcome"],
        published=published,
        claimed=claimed,
        started=started,
        ended=ended,
        first=times.get("first"),
        parts=tuple(parts),
        token=node["node"],
        gen=about["gen"],
        restarts=about["restarts"],
        cause=_cause(about),
        about={**node, **about},
    )


def _cause(about: View) -> str:
    if error := about.get("error"):
        return f"{error['message']} [{error['code']}]"
    if lost := about.get("vanished"):
        return "could not read " + ", ".join(f"{one['node']} (run {one['gen'] + 1})" for one in lost)
    return "its output was gone when it was needed" if about["outcome"] == "lost" else ""


def causes(view: View, spans: Sequence[Span]) -> list[str]:
    """One line for each failure: what, where in the app, which component and worker; the request's own last."""
    lines = []
    for span in spans:
        if span.cause:
            where = [span.about.get("line"), span.about.get("component"), span.about.get("worker")]
            lines.append(f"{span.label}: {span.cause} ({', '.join(filter(None, where))})")
    if error := view.get("error"):
        lines.append(f"request {view['status']}: {error['message']} [{error['code']}]")
    return lines
