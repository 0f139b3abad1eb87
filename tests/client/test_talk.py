"""When a request of a session is sent again, resumed or given up, and what of its input is said again. No network."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cornstalk.client.ask import Ask
from cornstalk.client.conversation import SLACK
from cornstalk.client.events import Chunk, End
from cornstalk.client.said import MOST, Said
from cornstalk.client.talk import Again, Elsewhere, Talk, decode
from cornstalk.errors import BadInput, GatewayError, Refused, RequestFailed, TimedOut, TooLarge, Unreachable

OPEN = ("text", "sound", "words")
STREAMS = {name: {"node": "n", "output": name} for name in OPEN}


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def talk_of(clock: Clock | None = None, open: tuple[str, ...] = OPEN, **changes: Any) -> Talk[dict[str, Any]]:
    plain: dict[str, Any] = {
        "app": "app",
        "fields": {"title": "x"},
        "key": "k",
        "deadline": 60.0,
        "seed": None,
        "durable": False,
        "resume_grace": 10.0,
        "tenant": None,
        "retry_refused": False,
    }
    return Talk("1", Ask(**{**plain, **changes}), open, None, 5.0, clock or Clock())


class Gateway:
    """Stores input and gives it back, as an app would whose response is its request."""

    def __init__(self) -> None:
        self.stored: dict[str, list[Any]] = {name: [] for name in OPEN}
        self.ended: set[str] = set()
        self.begun = False

    def accepted(self, frame: dict[str, Any]) -> dict[str, Any]:
        assert frame["type"] == ("resume" if frame.get("request") else "invoke")
        self.begun = True
        inputs = {name: {"size": sum(map(len, self.stored[name])), "ended": name in self.ended} for name in OPEN}
        return {"type": "accepted", "id": "1", "request": "r", "inputs": inputs}

    def take(self, frame: dict[str, Any]) -> None:
        name = frame["field"]
        assert name not in self.ended
        if frame["type"] == "input":
            self.stored[name].append(frame["data"])
        else:
            self.ended.add(name)


PIECES = st.one_of(
    st.tuples(st.just("text"), st.text("aé\U0001f33d", max_size=5)),
    st.tuples(st.just("sound"), st.binary(max_size=5)),
    st.tuples(st.just("words"), st.lists(st.sampled_from(["a", "b"]), max_size=3)),
)


@given(st.lists(PIECES, max_size=20), st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8), st.integers(0, 8))))
def test_cut_anywhere_all_is_said_once(pieces: list[tuple[str, Any]], cuts: list[tuple[int, int, int]]) -> None:
    """Before each cut some pieces are said and some frames sent, of which the last ones are not stored any more."""
    talk, gateway, rest = talk_of(), Gateway(), list(pieces)
    for said, sent, lost in [*cuts, (99, 99, 0)]:
        assert list(talk.hear(gateway.accepted(decode(talk.begin())))) == []
        for _ in range(min(said, len(rest))):
            talk.add(*rest.pop(0))
        if not rest:
            for name in OPEN:
                talk.end(name)
        frames = [decode(frame) for _ in range(sent) if (frame := talk.next_frame()) is not None]
        for frame in frames[: max(0, len(frames) - lost)]:
            gateway.take(frame)
        if sent < 99:
            talk.cut("cut", all_tried=False)
    assert gateway.ended == set(OPEN)
    assert not talk.waiting
    for name, empty in (("text", ""), ("sound", b""), ("words", [])):
        assert joined(gateway.stored[name], empty) == joined([p for n, p in pieces if n == name], empty)


def joined(parts: list[Any], empty: Any) -> Any:
    for part in parts:
        empty = empty + part
    return empty


def accepted(**inputs: Any) -> dict[str, Any]:
    return {"type": "accepted", "id": "1", "request": "r", "inputs": inputs}


def chunk(seq: int, text: str) -> dict[str, Any]:
    return {"type": "chunk", "seq": seq, "field": "text", "node": "n", "output": "text", "n": seq - 1, "data": text}


END = {"type": "end", "request": "r", "response": {}, "streams": {"text": {"node": "n", "output": "text"}}}


def refused(code: str, **more: Any) -> dict[str, Any]:
    return {"type": "error", "error": {"code": code, "message": "no", **more}}


def hear(talk: Talk[Any], *frames: dict[str, Any]) -> list[Any]:
    return [event for frame in frames for event in talk.hear(frame)]


def test_resumed_after_the_last_chunk_each_is_told_once() -> None:
    talk = talk_of(open=(), seed=3, tenant="t", durable=True)
    invoke = json.loads(talk.begin())
    assert invoke["options"] == {
        "idempotency_key": "k",
        "deadline": 60.0,
        "resume_grace": 10.0,
        "seed": 3,
        "durable": True,
        "tenant": "t",
    }
    first = hear(talk, accepted(), chunk(1, "a"), chunk(2, "b"))
    talk.cut("cut", all_tried=True)
    assert json.loads(talk.begin()) == {"type": "resume", "id": "1", "request": "r", "after": 2}
    rest = hear(talk, accepted(), chunk(2, "b"), chunk(3, "c"), END)
    assert [event.data for event in first + rest[:-1] if isinstance(event, Chunk)] == ["a", "b", "c"]
    assert isinstance(rest[-1], End)
    assert rest[-1].response == {"text": "abc"}
    assert talk.ended
    assert not talk.left_running


def test_sent_again_under_the_same_key_with_the_time_that_is_left() -> None:
    clock = Clock()
    talk = talk_of(clock)
    talk.begin()
    clock.now += 20
    talk.cut("cut", all_tried=True)
    again = json.loads(talk.begin())
    assert (again["type"], again["options"]["idempotency_key"], again["options"]["deadline"]) == ("invoke", "k", 40.0)


def test_nothing_is_said_before_it_is_accepted_nor_once_it_has_ended() -> None:
    talk = talk_of(open=("text",))
    talk.begin()
    talk.add("text", "x")
    assert talk.waiting
    assert talk.next_frame() is None
    hear(talk, accepted(text={"size": 0, "ended": False}))
    assert json.loads(talk.next_frame() or "")["data"] == "x"
    assert not talk.waiting
    talk.cut("cut", all_tried=False)
    talk.begin()
    hear(talk, accepted())  # it has ended meanwhile, none of its fields is open
    talk.add("text", "y")
    assert talk.next_frame() is None
    hear(talk, END)
    assert not talk.waiting


def test_cancel_is_said_once_on_each_connection() -> None:
    talk = talk_of(open=())
    talk.begin()
    talk.cancel()
    for _ in range(2):
        hear(talk, accepted())
        assert json.loads(talk.next_frame() or "") == {"type": "cancel", "id": "1"}
        assert talk.next_frame() is None
        talk.cut("cut", all_tried=False)
        talk.begin()
    with pytest.raises(RequestFailed) as caught:
        hear(talk, {"type": "error", "request": "r", "status": "cancelled", "error": {"code": "c", "message": "m"}})
    assert caught.value.status_word == "cancelled"
    assert not talk.left_running


def test_a_full_system_refuses_or_is_asked_again() -> None:
    full = refused("overloaded", retry_after=3.0)
    talk = talk_of()
    talk.begin()
    with pytest.raises(Refused) as caught:
        hear(talk, full)
    assert caught.value.retry_after == 3.0
    assert not talk.left_running
    patient = talk_of(retry_refused=True)
    patient.begin()
    with pytest.raises(Again) as again:
        hear(patient, full)
    assert (again.value.pause, patient.begun) == (3.0, False)
    stored = talk_of()  # it may be stored: then it is not given up
    stored.begin()
    stored.cut("cut", all_tried=True)
    stored.begin()
    with pytest.raises(Again):
        hear(stored, full)
    connections = talk_of()
    with pytest.raises(Refused):
        connections.cut("4429", Refused("full", 1.0), all_tried=True)


def test_a_gateway_that_stops_sends_it_elsewhere() -> None:
    clock = Clock()
    talk = talk_of(clock)
    talk.begin()
    with pytest.raises(Elsewhere):
        hear(talk, refused("unavailable", retry_after=1.0))
    talk.begin()
    clock.now += 6
    with pytest.raises(Refused):  # nobody serves for as long as gateways may be out of reach
        hear(talk, refused("unavailable", retry_after=1.0))


def test_what_is_refused_has_its_type() -> None:
    for frame, kind in (
        (refused("bad_input", field="text"), BadInput),
        (refused("bad_frame"), GatewayError),
        (refused("taken_over"), GatewayError),
        (refused("expired"), TimedOut),
        (refused("too_large", field="text"), TooLarge),
    ):
        talk = talk_of()
        talk.begin()
        with pytest.raises(kind):
            hear(talk, frame)


def test_when_it_is_given_up() -> None:
    clock = Clock()
    talk = talk_of(clock)
    talk.cut("away", all_tried=True)
    clock.now += 5
    talk.cut("away", all_tried=False)
    with pytest.raises(Unreachable, match="away"):
        talk.cut("away", all_tried=True)
    late = talk_of(clock)
    late.begin()
    hear(late, accepted())
    clock.now += 60 + SLACK - 1
    late.cut("away", all_tried=True)
    clock.now += 1
    with pytest.raises(TimedOut):
        late.cut("away", all_tried=True)


def test_bad_pieces() -> None:
    talk = talk_of()
    with pytest.raises(BadInput, match="an open field"):
        talk.add("title", "x")
    with pytest.raises(BadInput, match="str, bytes or a list"):
        talk.add("text", 5)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="JSON"):
        talk.add("words", [object()])
    talk.end("text")
    talk.end("text")
    with pytest.raises(BadInput, match="nothing more"):
        talk.add("text", "x")
    with pytest.raises(TooLarge):
        talk_of(fields={"text": "x" * (17 << 20)}).begin()


def test_a_large_piece_goes_in_several_frames() -> None:
    said = Said()
    said.add(b"x" * (2 * MOST + 1))
    said.go_on(0, ended=False)
    assert [len(said.take()) for _ in range(3)] == [MOST, MOST, 1]
    assert said.all_sent
