"""One request of the command line and its answer as it comes. Cuts are the client's business (cornstalk/client)."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from cornstalk.cli.errors import TIMED_OUT, CliError
from cornstalk.cli.gateway import Gateway, told
from cornstalk.cli.wav import rate_of
from cornstalk.client import Chunk, End
from cornstalk.client.ask import DEADLINE
from cornstalk.client.fields import Typed
from cornstalk.errors import CornstalkError, RequestFailed

GRACE: Final = 10.0
"""Seconds for which a request whose client was cut off goes on."""


@dataclass(frozen=True)
class Ask:
    """What to ask of an app."""

    app: str
    fields: Mapping[str, str] = field(default_factory=dict)
    files: Sequence[tuple[str, str, bytes]] = ()
    """Field, file name and bytes; a field that is a list may have several."""
    deadline: float | None = None
    """Seconds from now."""
    grace: float = GRACE
    """Seconds the request goes on without a client, and is kept after its end."""

    def values(self) -> dict[str, Any]:
        """All fields, as the client takes them."""
        values: dict[str, Any] = {name: Typed(text) for name, text in self.fields.items()}
        for name, _, data in self.files:
            values.setdefault(name, []).append(data)
        return values


@dataclass
class Answer:
    """What has arrived so far. Whole and `status` "done" after the last event."""

    request: str = ""
    status: str = ""
    texts: dict[str, str] = field(default_factory=dict)
    """Stream fields of text."""
    sounds: dict[str, bytes] = field(default_factory=dict)
    """Stream fields of bytes."""
    media: dict[str, str] = field(default_factory=dict)
    lists: dict[str, list[Any]] = field(default_factory=dict)
    plain: dict[str, Any] = field(default_factory=dict)
    """Fields of which no piece came."""
    times: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] = field(default_factory=dict)
    first_text: float = 0.0
    """Unix seconds; 0 when there was none."""
    first_sound: float = 0.0

    def rate(self, name: str) -> int | None:
        """Samples per second of a sound; None when it is no raw audio."""
        return rate_of(self.media.get(name, ""))

    def add(self, chunk: Chunk) -> tuple[str, str | bytes] | None:
        """Takes a piece; gives it back with its field if it is text or bytes."""
        name, piece = chunk.field, chunk.data
        if isinstance(piece, list):
            self.lists.setdefault(name, []).extend(piece)
            return None
        if isinstance(piece, str):
            self.first_text = self.first_text or time.time()
            self.texts[name] = self.texts.get(name, "") + piece
        else:
            self.first_sound = self.first_sound or time.time()
            self.media[name] = chunk.media_type
            self.sounds[name] = self.sounds.get(name, b"") + piece
        return name, piece

    def end(self, end: End) -> None:
        """Takes the end of a request that ended well."""
        self.status, self.times = "done", end.answer.times
        self.plain = {n: v for n, v in end.response.items() if n not in {*self.texts, *self.lists, *self.sounds}}

    def fail(self, failed: RequestFailed) -> None:
        """Takes the end of a request that did not."""
        self.request, self.status = failed.request, failed.status_word
        self.error = msgspec.to_builtins(failed.error) if failed.error is not None else {}

    def response(self) -> dict[str, Any]:
        """The response model as JSON values; bytes as base64."""
        whole: dict[str, Any] = msgspec.to_builtins({**self.plain, **self.texts, **self.lists, **self.sounds})
        return whole


async def stream(gateway: Gateway, ask: Ask, answer: Answer) -> AsyncIterator[tuple[str, str | bytes]]:
    """Pieces in stored order, each once; `answer` is whole at the end.

    Survives cut connections and gateways that die. Cancelling it cancels the request. Raises CliError: refused, cannot
    reach, or no end within the deadline.
    """
    deadline = DEADLINE if ask.deadline is None else ask.deadline
    events = gateway.client.stream(ask.app, ask.values(), deadline=deadline, resume_grace=ask.grace)
    try:
        async with events:
            async for event in events:
                answer.request = events.request
                if isinstance(event, End):
                    answer.end(event)
                elif piece := answer.add(event):
                    yield piece
    except RequestFailed as failed:
        answer.fail(failed)
    except CornstalkError as error:
        raise told(error) from error


def raise_failure(answer: Answer) -> None:
    """CliError for an answer that ended in any way but `done`."""
    if answer.status == "done":
        return
    error = answer.error
    where = ", ".join(f"{k} {error[k]}" for k in ("component", "node", "attempt") if error.get(k))
    trace = f"cornstalk trace {answer.request}"
    raise CliError(
        f"request {answer.request} {answer.status or 'has no end'}: {error.get('message', 'no cause was given')}",
        why=", ".join(filter(None, [str(error.get("code", "")), where])),
        next=f"send it again, or {trace}" if error.get("retryable") else trace,
        exit_code=TIMED_OUT if answer.status == "expired" else 1,
    )
