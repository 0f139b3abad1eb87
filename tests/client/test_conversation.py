"""When a request is sent again, resumed, or given up: the policy without a network."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cornstalk.client.ask import Ask
from cornstalk.client.conversation import SLACK, Conversation
from cornstalk.client.events import Chunk, End
from cornstalk.client.urls import Urls
from cornstalk.errors import BadInput, GatewayError, Refused, RequestFailed, TimedOut, Unreachable

A, B = "http://a", "http://b"
TEXT = ["The ", "capital ", "is ", "Paris. ", "é"]


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def ask(**changes: Any) -> Ask:
    plain: dict[str, Any] = {
        "app": "app",
        "fields": {"text": "x"},
        "key": "k",
        "deadline": 60.0,
        "seed": None,
        "durable": False,
        "resume_grace": 10.0,
        "tenant": None,
        "retry_refused": False,
    }
    return Ask(**{**plain, **changes})


def talk_of(clock: Clock, *urls: str, **changes: Any) -> Conversation[dict[str, Any]]:
    request = ask(**changes)
    return Conversation(request, request.body(), Urls(urls or (A,)), None, 5.0, clock)


def chunk(seq: int, text: str) -> bytes:
    data = {"field": "text", "node": "n", "output": "text", "n": seq - 1, "data": text}
    return f"event: chunk\nid: {seq}\ndata: {json.dumps(data)}\n\n".encode()


STREAMS = {"text": {"node": "n", "output": "text"}}
END = b"event: end\ndata: " + json.dumps({"request": "r", "response": {}, "streams": STREAMS}).encode() + b"\n\n"
ANSWER = b"".join(chunk(i + 1, text) for i, text in enumerate(TEXT)) + END


def refused(code: str = "overloaded") -> bytes:
    return json.dumps({"error": {"code": code, "message": "no"}}).encode()


@given(st.lists(st.integers(0, len(ANSWER)), max_size=8), st.data())
def test_cut_at_any_byte_each_piece_comes_once(cuts: list[int], data: st.DataObject) -> None:
    """The gateway goes on after the last id that it is told, as ours does; the bytes come in any portions."""
    talk = talk_of(Clock(), A, B)
    pieces: list[str] = []
    answers = []
    for cut in [*cuts, len(ANSWER)]:
        send = talk.send()
        after = int(send.headers.get("Last-Event-ID", "0"))
        assert send.method == ("GET" if talk.request else "POST")
        rest = b"".join(chunk(i + 1, t) for i, t in enumerate(TEXT) if i + 1 > after) + END
        talk.opened({"cornstalk-request": "r"})
        said = rest[:cut]
        split = data.draw(st.integers(0, len(said)))
        for event in (*talk.feed(said[:split]), *talk.feed(said[split:])):
            if isinstance(event, Chunk):
                pieces.append(str(event.data))
            elif isinstance(event, End):
                answers.append(event.response)
        if talk.ended:
            break
        assert talk.cut("closed") <= 1.0
    assert pieces == TEXT
    assert answers == [{"text": "".join(TEXT)}]


def test_it_is_sent_under_one_key_until_it_is_taken_and_the_deadline_stays() -> None:
    clock = Clock()
    talk = talk_of(clock, A, B, seed=3, durable=True, tenant="t")
    first = talk.send()
    talk.cut("read timed out")
    clock.now += 20
    second = talk.send()
    assert (first.method, first.url, second.url) == ("POST", f"{A}/apps/app", f"{B}/apps/app")
    assert first.content == second.content == b'{"text":"x"}'
    assert first.headers["Idempotency-Key"] == second.headers["Idempotency-Key"] == "k"
    assert (first.headers["Cornstalk-Deadline"], second.headers["Cornstalk-Deadline"]) == ("60", "40")
    assert {
        ("Cornstalk-Seed", "3"),
        ("Cornstalk-Durable", "true"),
        ("Cornstalk-Tenant", "t"),
        ("Cornstalk-Resume-Grace", "10"),
    } <= set(first.headers.items())


def test_gateways_that_were_never_reached_are_soon_given_up() -> None:
    clock = Clock()
    talk = talk_of(clock, A, B)
    for _ in range(3):
        talk.send()
        talk.cut("refused", sent=False)
    clock.now += 5
    talk.send()
    with pytest.raises(Unreachable, match=f"{A}, {B}: refused"):
        talk.cut("refused", sent=False)
    assert talk.ended


def test_a_request_that_may_be_stored_is_followed_up_to_the_deadline() -> None:
    clock = Clock()
    talk = talk_of(clock)
    talk.send()
    talk.cut("reset", sent=True)
    clock.now += 59
    talk.send()
    assert talk.refused(429, {"retry-after": "2"}, refused()) >= 2
    talk.send()
    talk.cut("refused", sent=False)
    clock.now += SLACK + 1
    with pytest.raises(Unreachable):
        talk.cut("refused", sent=False)


def test_a_full_system_refuses_once_or_until_the_deadline() -> None:
    talk = talk_of(Clock(), A, B)
    talk.send()
    assert talk.refused(503, {"retry-after": "30"}, refused()) < 1  # the other gateway first
    talk.send()
    with pytest.raises(Refused) as caught:
        talk.refused(429, {"retry-after": "7"}, refused())
    assert caught.value.retry_after == 7
    clock = Clock()
    patient = talk_of(clock, retry_refused=True)
    for _ in range(5):
        patient.send()
        assert patient.refused(429, {"retry-after": "7"}, refused()) == 7
        clock.now += 7
    patient.send()
    clock.now = 164
    with pytest.raises(Refused):
        patient.refused(429, {"retry-after": "7"}, refused())


def test_a_refusal_for_good_is_not_asked_again() -> None:
    talk = talk_of(Clock(), A, B)
    talk.send()
    with pytest.raises(BadInput, match="no"):
        talk.refused(422, {}, refused("bad_input"))
    assert talk.ended


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (500, b"<html>proxy</html>", GatewayError),
        (410, refused("gone"), GatewayError),
        (504, refused("expired"), TimedOut),
        (502, b"", Refused),
        (400, json.dumps({"error": {"code": "malformed_body", "message": "f: m", "field": "f"}}).encode(), BadInput),
    ],
)
def test_refusals_are_typed(status: int, body: bytes, kind: type[Exception]) -> None:
    talk = talk_of(Clock())
    talk.send()
    with pytest.raises(kind):
        talk.refused(status, {}, body)


def test_a_resumed_request_waits_for_a_gateway_that_is_starting() -> None:
    talk = talk_of(Clock())
    talk.send()
    talk.opened({"cornstalk-request": "r"})
    assert list(talk.feed(chunk(1, "a")))
    talk.cut("reset")
    assert talk.send().url == f"{A}/requests/r/events"
    assert talk.refused(503, {"retry-after": "9"}, refused()) < 1
    assert talk.send().headers["Last-Event-ID"] == "1"


def test_no_end_in_time() -> None:
    clock = Clock()
    talk = talk_of(clock)
    talk.send()
    talk.opened({"cornstalk-request": "r"})
    assert not list(talk.feed(b": ping\n\n"))
    assert talk.left_running
    clock.now += 60 + SLACK + 1
    with pytest.raises(TimedOut, match="request r did not end within 60 s"):
        list(talk.feed(b": ping\n\n"))
    assert not talk.left_running


def test_who_takes_long_over_a_piece_is_not_out_of_time() -> None:
    clock = Clock()
    talk = talk_of(clock)
    talk.send()
    talk.opened({"cornstalk-request": "r"})
    for _ in talk.feed(chunk(1, "a")):
        clock.now += 200
    assert not list(talk.feed(chunk(2, "b")[:20]))
    assert len(list(talk.feed(chunk(2, "b")[20:] + END))) == 2
    assert talk.cut("closed") == 0


def test_what_is_no_gateway_is_not_asked_again() -> None:
    talk = talk_of(Clock(), A, B)
    talk.send()
    with pytest.raises(GatewayError, match=f"{A} is no gateway"):
        talk.opened({"content-type": "text/html"})
    assert talk.ended


def test_an_end_that_is_an_error() -> None:
    talk = talk_of(Clock())
    talk.send()
    talk.opened({"cornstalk-request": "r"})
    said = b'event: error\ndata: {"request":"r","status":"failed","error":{"code":"c","message":"m","node":"n"}}\n\n'
    with pytest.raises(RequestFailed, match="request r failed: m") as caught:
        list(talk.feed(said))
    assert caught.value.error is not None
    assert (caught.value.error.code, caught.value.error.node) == ("c", "n")
    assert not talk.left_running
