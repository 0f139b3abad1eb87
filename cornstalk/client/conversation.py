"""One request from its first try to its end, through cuts and dead gateways. Pure: a transport moves the bytes.

The transport opens what `send` names and tells what came of it: `refused`, or `opened` and then `feed`, or `cut`.
`refused` and `cut` give the seconds after which to go on with `send`, or raise when there is no use.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Generic, NamedTuple, NoReturn

import msgspec

from cornstalk.client.ask import Ask
from cornstalk.client.events import Chunk, End, R
from cornstalk.client.failures import no_gateway, refusal, request_failure
from cornstalk.client.fields import Body
from cornstalk.client.reading import Reading
from cornstalk.client.sse import Parser
from cornstalk.client.urls import Backoff, Urls
from cornstalk.errors import CornstalkError, Refused, TimedOut, Unreachable

SLACK: Final = 5.0
"""Seconds after the deadline, or after the last piece if that is later, in which the end is still awaited."""

_json = msgspec.json.Decoder()


class Send(NamedTuple):
    """An HTTP request to make now."""

    method: str
    url: str
    headers: Mapping[str, str]
    content: bytes = b""


class Conversation(Generic[R]):
    """Sent under one key until a gateway answers, resumed after the last event until its end: run once, heard once."""

    def __init__(
        self,
        ask: Ask,
        body: Body,
        urls: Urls,
        model: type[R] | None,
        reach_within: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask, self._body, self._urls, self._clock = ask, body, urls, clock
        self._reading: Reading[R] = Reading(model)
        self._parser = Parser()
        self._backoff = Backoff()
        self._url = urls.first
        self._last = 0
        self._may_be_stored = False
        self._tries = 0
        self._deadline = self._heard = clock() + ask.deadline
        self._reach_until = clock() + reach_within
        self._opened = False
        self.request = ""
        """Its id, as soon as a gateway has answered."""
        self.ended = False

    @property
    def left_running(self) -> bool:
        """Whether leaving now leaves work behind that nobody waits for."""
        return bool(self.request) and not self.ended and not self._ask.durable

    def send(self) -> Send:
        """What to open now."""
        self._url, self._parser, self._opened = self._urls.first, Parser(), False
        self._tries += 1
        if self.request:
            headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": str(self._last)} if self._last else {})
            return Send("GET", f"{self._url}/requests/{self.request}/events", headers)
        again = self._tries > 1
        headers = self._ask.headers(max(0.001, self._deadline - self._clock()) if again else self._ask.deadline)
        headers["Content-Type"] = self._body.media_type
        return Send("POST", f"{self._url}{self._ask.path}", headers, self._body.content)

    def opened(self, headers: Mapping[str, str]) -> str:
        """A gateway took it: the request's id. `headers` by lower-case name. Raises GatewayError when it was none."""
        if "cornstalk-request" not in headers:
            return self._give_up(no_gateway(self._url))
        self.request = headers["cornstalk-request"]
        self._may_be_stored = self._opened = True
        return self.request

    def feed(self, data: bytes) -> Iterator[Chunk | End[R]]:
        """The events that these bytes complete, each piece once.

        Raises RequestFailed; TimedOut; GatewayError when a piece is missing; pydantic.ValidationError when the model
        refuses the response.
        """
        for event in self._parser.feed(data):
            self._backoff.reset()
            if event.kind == "chunk":
                yield from self._chunk(int(event.id), _json.decode(event.data))
            elif event.kind == "end":
                self.ended = True
                yield End(self._reading.answer(_json.decode(event.data)))
            elif event.kind == "error":
                self.ended = True
                raise request_failure(_json.decode(event.data))
            self._heard = max(self._heard, self._clock())  # who takes long over a piece is not out of time
        if not self.ended and self._too_late(0.0):
            self.ended = True
            raise self._timed_out("the gateway answers, the request does not end")

    def _chunk(self, seq: int, data: Mapping[str, Any]) -> Iterator[Chunk]:
        if seq > self._last:
            self._last = seq
            if (chunk := self._reading.chunk(seq, data)) is not None:
                yield chunk

    def refused(self, status: int, headers: Mapping[str, str], body: bytes) -> float:
        """A gateway answered 4xx or 5xx. Raises the typed error when asking again is of no use or was not asked for."""
        error = refusal(status, headers, body)
        self._urls.pass_over(self._url)
        if not isinstance(error, Refused):
            return self._give_up(error)
        all_refuse = self._tries >= len(self._urls)
        if all_refuse and not self._may_be_stored and not self._ask.retry_refused:
            return self._give_up(error)
        return self._pause(error, error.retry_after if all_refuse and not self.request else 0.0)

    def cut(self, why: str, *, sent: bool = True) -> float:
        """The connection ended before the request did, or none came about. `sent`: the gateway may have taken it.

        Nothing if its end was heard before. Raises Unreachable when no gateway was ever reached, or none is at the
        deadline; TimedOut when one was.
        """
        if self.ended:
            return 0.0
        self._urls.pass_over(self._url)
        self._may_be_stored |= sent
        error = self._timed_out(why) if self._opened else Unreachable(f"cannot reach {self._urls}: {why}")
        in_vain = self._tries >= len(self._urls) and self._clock() >= self._reach_until
        if in_vain and not self._may_be_stored:
            return self._give_up(error)
        return self._pause(error, 0.0)

    def _pause(self, error: CornstalkError, at_least: float) -> float:
        pause = max(at_least, self._backoff.next())
        return self._give_up(error) if self._too_late(pause) else pause

    def _too_late(self, pause: float) -> bool:
        return self._clock() + pause > self._heard + SLACK

    def _timed_out(self, why: str) -> TimedOut:
        return TimedOut(f"request {self.request} did not end within {self._ask.deadline:g} s: {why}")

    def _give_up(self, error: CornstalkError) -> NoReturn:
        self.ended = True
        raise error
