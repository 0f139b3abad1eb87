"""One request and its answer as it comes: sent once, resumed by sequence after every cut."""

from __future__ import annotations

import asyncio
import base64
import json
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from cornstalk.cli.errors import TIMED_OUT, CliError
from cornstalk.cli.gateway import Gateway, Refused
from cornstalk.cli.sse import Event, Parser
from cornstalk.cli.wav import rate_of

GRACE: Final = 10.0
"""Seconds for which a request whose client was cut off goes on."""
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0


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

    def parts(self) -> list[tuple[str, Any]]:
        """The parts of the multipart body; a part with no file name is a plain field."""
        plain = [(name, (None, value)) for name, value in self.fields.items()]
        return [*plain, *((field, (name, data, "application/octet-stream")) for field, name, data in self.files)]


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
    times: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] = field(default_factory=dict)
    first_text: float = 0.0
    """Unix seconds; 0 when there was none."""
    first_sound: float = 0.0

    def rate(self, name: str) -> int | None:
        """Samples per second of a sound; None when it is no raw audio."""
        return rate_of(self.media.get(name, ""))

    def add(self, event: Event) -> tuple[str, str | bytes] | None:
        """Takes an event; the field and the piece that it brought, if it is text or bytes."""
        data = json.loads(event.data)
        if event.kind == "chunk":
            return self._add_piece(data["field"], data["data"], data.get("media_type", ""))
        self.request, self.status = data.get("request", self.request), data["status"]
        self.plain, self.times, self.error = data.get("response") or {}, data.get("times", {}), data.get("error", {})
        return None

    def _add_piece(self, name: str, piece: Any, media_type: str) -> tuple[str, str | bytes] | None:
        if media_type:
            sound = base64.b64decode(piece)
            self.first_sound = self.first_sound or time.time()
            self.media[name] = media_type
            self.sounds[name] = self.sounds.get(name, b"") + sound
            return name, sound
        if isinstance(piece, str):
            self.first_text = self.first_text or time.time()
            self.texts[name] = self.texts.get(name, "") + piece
            return name, piece
        self.lists.setdefault(name, []).extend(piece)
        return None

    def response(self) -> dict[str, Any]:
        """The response model as JSON values; bytes as base64."""
        sounds = {name: base64.b64encode(data).decode() for name, data in self.sounds.items()}
        return {**self.plain, **self.texts, **self.lists, **sounds}


async def stream(gateway: Gateway, ask: Ask, answer: Answer) -> AsyncIterator[tuple[str, str | bytes]]:
    """Pieces in stored order, each once; `answer` is whole at the end.

    Survives cut connections and gateways that die: it goes on after the last event that came. Cancelling it leaves the
    request to its grace. Raises CliError: refused, cannot reach, or no end within the deadline.
    """
    body, kind = _body(ask)
    headers = {
        "Accept": "text/event-stream",
        "Content-Type": kind,
        "Cornstalk-Resume-Grace": str(ask.grace),
        "Idempotency-Key": uuid.uuid4().hex,  # the request may have been taken although no answer came
    }
    if ask.deadline is not None:
        headers["Cornstalk-Deadline"] = str(ask.deadline)
    end = time.monotonic() + (ask.deadline or 120.0) + ask.grace
    last, reached, pause = "", False, FIRST_PAUSE
    while True:
        if answer.request:
            resume = {"Accept": "text/event-stream", **({"Last-Event-ID": last} if last else {})}
            opened = gateway.open("GET", f"/requests/{answer.request}/events", headers=resume)
        else:
            opened = gateway.open("POST", f"/apps/{ask.app}", headers=headers, content=body)
        cause = "the connection was cut"
        try:
            async with opened as response:
                reached, pause = True, FIRST_PAUSE
                answer.request = response.headers.get("Cornstalk-Request", answer.request)
                async for event in _events(response):
                    last = event.id or last
                    if piece := answer.add(event):
                        yield piece
                    if event.kind in ("end", "error"):
                        return
        except httpx.TransportError as error:
            gateway.pass_over(gateway.urls[0])
            if not reached and len(gateway.urls) == 1:
                raise gateway.unreachable(error) from error
            cause = str(error) or type(error).__name__
        except Refused as refusal:
            if not answer.request or not refusal.passing:
                raise
            cause = refusal.what
        if time.monotonic() > end:
            raise CliError("no answer in time", why=cause, exit_code=TIMED_OUT)
        await asyncio.sleep(pause)
        pause = min(LONGEST_PAUSE, pause * 2)


async def _events(response: httpx.Response) -> AsyncIterator[Event]:
    parser = Parser()
    async for data in response.aiter_bytes():
        for event in parser.feed(data):
            yield event


def _body(ask: Ask) -> tuple[bytes, str]:
    """The body and its type. Made once: a retry under the same key must send the same bytes."""
    parts = ask.parts()
    if not parts:
        return b"{}", "application/json"  # there is no multipart body without a part
    kind = f"multipart/form-data; boundary={uuid.uuid4().hex}"
    return httpx.Request("POST", "http://x", files=parts, headers={"Content-Type": kind}).read(), kind


def raise_failure(answer: Answer) -> None:
    """CliError for an answer that ended in any way but `done`."""
    if answer.status == "done":
        return
    error = answer.error
    where = ", ".join(f"{k} {error[k]}" for k in ("component", "node", "attempt") if error.get(k))
    raise CliError(
        f"request {answer.request} {answer.status or 'has no end'}: {error.get('message', 'no cause was given')}",
        why=", ".join(filter(None, [str(error.get("code", "")), where])),
        next="send it again" if error.get("retryable") else "cornstalk status  (shows workers and queues)",
        exit_code=TIMED_OUT if answer.status == "expired" else 1,
    )
