"""One request of a session, from its first frame to its end, over any number of connections. Pure.

The transport sends `begin` on each new connection, tells what comes (`hear`) and that the connection ended (`cut`), and
sends what `next_frame` gives until that is None.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, NoReturn

import msgspec
from pydantic_core import to_json

from cornstalk.client.ask import Ask
from cornstalk.client.conversation import SLACK
from cornstalk.client.events import Chunk, End, R
from cornstalk.client.failures import frame_refusal, request_failure
from cornstalk.client.fields import jsonable
from cornstalk.client.reading import Reading
from cornstalk.client.said import Said
from cornstalk.errors import BadInput, CornstalkError, Refused, TimedOut, TooLarge, Unavailable, Unreachable
from cornstalk.frames import LIMIT, join, split

Frame = str | bytes
"""A text frame, or a binary one."""


class Again(Exception):
    """Raised by `Talk.hear`: this request is to `begin` again, on this connection, after `pause` seconds."""

    def __init__(self, pause: float) -> None:
        super().__init__()
        self.pause = pause


class Elsewhere(Exception):
    """Raised by `Talk.hear`: this gateway serves nobody now; another one may."""


def decode(message: Frame) -> dict[str, Any]:
    """A frame of the gateway; the bytes of a binary one are its `data`. Raises ValueError."""
    header, *data = split(message) if isinstance(message, bytes) else (message,)
    frame = msgspec.json.decode(header, type=dict[str, Any])
    return frame | {"data": data[0]} if data else frame


class Talk(Generic[R]):
    """Sent under one key until a gateway answers, resumed after the last chunk: run once, heard once.

    What is said of its input is said again as far as it is not stored.
    """

    def __init__(
        self,
        id: str,
        ask: Ask,
        open: Iterable[str],
        model: type[R] | None,
        reach_within: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`open`: fields that follow in pieces. Raises BadInput for what JSON cannot hold."""
        self.id, self._ask, self._clock = id, ask, clock
        self._input = jsonable(ask.fields)
        self._said = {field: Said() for field in open}
        self._reading: Reading[R] = Reading(model)
        self._last = 0
        self._deadline = self._heard = clock() + ask.deadline
        self._reach_until = clock() + reach_within
        self._may_be_stored = False
        self._accepted = False  # on the connection that is open now
        self._cancel = self._cancel_sent = False
        self._finished = False  # at the gateway
        self.begun = False
        """On the connection that is open now."""
        self.request = ""
        self.ended = False

    # ------------------------------------------------------------ what to send

    def begin(self) -> Frame:
        """The first frame on this connection. Raises TooLarge."""
        if self.request:
            frame = self._frame("resume", request=self.request, after=self._last)
        else:
            frame = self._frame("invoke", input=self._input, open=list(self._said), options=self._options())
            if len(frame.encode()) > LIMIT:
                self._give_up(TooLarge(f"expected at most {LIMIT} bytes of input beside files and streams, got more"))
        self.begun, self._accepted, self._cancel_sent = True, False, False
        return frame

    def next_frame(self) -> Frame | None:
        """What is to be sent now, if anything."""
        if not self._accepted or self.ended:
            return None
        if self._cancel and not self._cancel_sent:
            self._cancel_sent = True
            return self.cancelling()
        for field, said in self._said.items():
            if not said.all_sent:
                return self._piece(field, said.take())
        return None

    def add(self, field: str, piece: str | bytes | bytearray | memoryview | list[Any]) -> None:
        """The next piece of an open field. Raises BadInput."""
        said = self._open(field)
        if said.ended:
            raise BadInput("expected nothing more: this field has ended", field)
        if isinstance(piece, (bytearray, memoryview)):
            piece = bytes(piece)
        elif isinstance(piece, (list, tuple)):
            piece = jsonable({field: list(piece)})[field]
        elif not isinstance(piece, (str, bytes)):
            raise BadInput(f"expected str, bytes or a list, got {type(piece).__name__}", field)
        said.add(piece)

    def end(self, field: str) -> None:
        """No more pieces of an open field; again does no harm. Raises BadInput."""
        self._open(field).ended = True

    def cancel(self) -> None:
        """Ends the request before its time."""
        self._cancel = True

    def cancelling(self) -> Frame:
        """The frame that does so, for who does not wait for the end."""
        return self._frame("cancel")

    @property
    def waiting(self) -> bool:
        """Whether something that was said is not sent yet."""
        if self.ended:
            return False
        cancelled = self._cancel_sent or not self._cancel
        return not (self._accepted and cancelled and all(said.all_sent for said in self._said.values()))

    def _open(self, field: str) -> Said:
        if field not in self._said:
            raise BadInput(f"expected an open field ({', '.join(self._said) or 'there is none'})", field)
        return self._said[field]

    def _options(self) -> dict[str, Any]:
        ask = self._ask
        left = max(0.001, self._deadline - self._clock()) if self._may_be_stored else ask.deadline
        options = {"idempotency_key": ask.key, "deadline": left, "resume_grace": ask.resume_grace}
        more = {"seed": ask.seed, "durable": ask.durable or None, "tenant": ask.tenant}
        return options | {name: value for name, value in more.items() if value is not None}

    def _frame(self, type: str, **fields: Any) -> str:
        return to_json({"type": type, "id": self.id, **fields}, inf_nan_mode="strings").decode()

    def _piece(self, field: str, piece: Any) -> Frame:
        if piece is None:
            return self._frame("input_end", field=field)
        if isinstance(piece, bytes):
            return join(self._frame("input", field=field).encode(), piece)
        return self._frame("input", field=field, data=piece)

    # ------------------------------------------------------------ what came of it

    def hear(self, frame: Mapping[str, Any]) -> Iterator[Chunk | End[R]]:
        """The events of a frame, each piece once.

        Raises RequestFailed, GatewayError for a missing piece, pydantic.ValidationError; for a frame that was refused
        its typed error, or Again, or Elsewhere.
        """
        match frame["type"]:
            case "accepted":
                self._take_up(frame)
            case "chunk":
                self._last = frame["seq"]
                if (chunk := self._reading.chunk(self._last, frame)) is not None:
                    yield chunk
            case "end":
                self.ended = self._finished = True
                yield End(self._reading.answer(frame))
            case "error" if "status" in frame:
                self._finished = True
                self._give_up(request_failure(frame))
            case "error":
                self._refused(frame_refusal(frame["error"]))
        self._heard = max(self._heard, self._clock())  # who takes long over a piece is not out of time

    def cut(self, why: str, refused: Refused | None = None, *, all_tried: bool) -> None:
        """The connection ended, or none came about. Raises when going on is of no use: `refused`, Unreachable if no
        gateway was ever reached, TimedOut. `all_tried`: no other gateway is left to try.
        """
        self._may_be_stored |= self.begun
        self.begun = self._accepted = False
        if self.ended:
            return
        if refused is not None and all_tried and not self._may_be_stored and not self._ask.retry_refused:
            self._give_up(refused)
        in_vain = all_tried and not self._may_be_stored and self._clock() >= self._reach_until
        if in_vain or self.patience <= 0:
            self._give_up(self._late(why) if self.request else Unreachable(f"cannot reach a gateway: {why}"))

    @property
    def left_running(self) -> bool:
        """Whether leaving now leaves work behind that nobody waits for."""
        return bool(self.begun or self.request) and not self._finished and not self._ask.durable

    @property
    def patience(self) -> float:
        """Seconds for which its end is still awaited."""
        return self._heard + SLACK - self._clock()

    def late(self) -> TimedOut:
        """Its end is awaited no longer."""
        self.ended = True
        return self._late("nothing more came")

    def _take_up(self, frame: Mapping[str, Any]) -> None:
        self.request, self._accepted, self._may_be_stored = frame["request"], True, True
        for field, said in self._said.items():
            stored = frame["inputs"].get(field, {"size": 0, "ended": True})  # none is open of a request that has ended
            said.go_on(stored["size"], stored["ended"])

    def _refused(self, error: CornstalkError) -> NoReturn:
        self.begun = self._accepted
        if isinstance(error, Unavailable):
            if not self._may_be_stored and self._clock() >= self._reach_until:
                self._give_up(error)
            raise Elsewhere from error
        if not isinstance(error, Refused) or not (self._may_be_stored or self._ask.retry_refused):
            self._give_up(error)
        if error.retry_after > self.patience:
            self._give_up(error)
        raise Again(error.retry_after)

    def _late(self, why: str) -> TimedOut:
        return TimedOut(f"request {self.request} did not end within {self._ask.deadline:g} s: {why}")

    def _give_up(self, error: CornstalkError) -> NoReturn:
        self.ended = True
        raise error
