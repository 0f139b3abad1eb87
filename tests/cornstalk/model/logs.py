"""Programs whose stored logs are kept, release by release: what was recorded then must be found again now.

`python -m tests.cornstalk.model.logs` records what this release lacks. Nothing that is there is written again: a change
that breaks an old log strands the requests that run while gateways are updated, and needs a new SDK in
cornstalk/release.py instead.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from cornstalk import CompositeTask, TaskError, new_id, now, rng, wait
from cornstalk.messages import Error
from cornstalk.release import SDK
from cornstalk.testing.recorded import Recording, record
from cornstalk.testing.store import Store
from tests.cornstalk.model.apps import ENGINES, Answer, Echo, composite

LOGS: Final = Path(__file__).parent / "logs"


class Stored(msgspec.Struct):
    """What is stored of one request, and what it answered."""

    graphs: list[bytes]
    ends: dict[str, tuple[int, bytes, Error | None]]
    response: str  # its repr

    def store(self) -> Store:
        """As it was at its end."""
        store = Store()
        store.graphs, store.ends = list(self.graphs), dict(self.ends)
        store.sequence = len(self.graphs) + len(self.ends)
        store.closed = any(graph.closed for graph in store.decoded_graphs())
        return store


def loop(self: Any, q: str) -> Any:
    notes: list[str] = []
    for i in range(4):
        s = self.echo(x=f"{q}{i}{len(notes)}").s
        if len(s) > 2:
            try:
                notes.append(self.risky(x=s).s if i % 2 else s)
            except TaskError:
                notes.append(self.echo(x="instead of " + s).s)
    return notes, [(self.eye(image=n), n)[1] for n in notes]


def guess(self: Any, q: str) -> Any:
    """A failure cuts what was begun in the hope that it goes well."""
    try:
        first = self.risky(x=f"bad {q}").s
        return self.echo(x=first).s, self.echo(x="beside").n
    except TaskError:
        return self.echo(x="plan b").s


def edges(self: Any, q: str) -> Any:
    media = [self.eye(image=f"{q}{i}").emb for i in range(3)]
    text = self.brain(prompt=q, images=media).text
    return Answer(text=text, audio=self.voice(text=text).audio, label=self.echo(x="label").s)


def drawn(self: Any, q: str) -> Any:
    made = self.echo(x=f"{new_id()} {now().isoformat()} {rng().random()}").s
    return wait(made), self.echo(x={"of": [q, 1, 2.5, None, b"\0"]}).d, new_id()


class Inner(CompositeTask):
    echo = Echo(tag="inner")

    def invoke(self, q: str) -> str:
        said = self.echo(x=q).s
        return self.echo(x=said.upper()).s if "1" in said else said


def nested(self: Any, q: str) -> Any:
    parts = [self.inner(f"{q} {i}") for i in range(3)]
    return self.echo(x="-".join(parts)).s


def programs() -> dict[str, Callable[[], CompositeTask]]:
    return {
        "loop": lambda: composite(loop),
        "guess": lambda: composite(guess),
        "edges": lambda: composite(edges),
        "drawn": lambda: composite(drawn),
        "nested": lambda: composite(nested, inner=Inner(), echo=Echo()),
    }


def recorded(task: CompositeTask) -> Stored:
    """One request, now."""
    found = record(task, "question", ENGINES)
    return Stored(found.store.graphs, found.store.ends, repr(found.result().response))


def replayed(task: CompositeTask, stored: Stored) -> tuple[str, int]:
    """What an old log answers now, and how many facts were stored beside it."""
    found = record(task, "question", ENGINES)
    store = stored.store()
    again = Recording(found.subject, found.fakes, store)
    return repr(again.replay()), store.steps


def main() -> None:
    for name, task in programs().items():
        path = LOGS / SDK / f"{name}.msgpack"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(msgspec.msgpack.encode(recorded(task())))


if __name__ == "__main__":
    main()
