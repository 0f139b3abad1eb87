"""Our client reads what nats-py reads, and nats-py still asks for it; `listen` hears each message once, in order."""

from __future__ import annotations

import time
from typing import Any

import nats.aio.client
import nats.protocol.parser
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.connection import Broker
from broker.errors import Disconnected
from broker.requests import Message
from broker.server import Server
from broker.wire import Client, _Parser
from tests.waiting import eventually

NAMES = st.text(st.characters(min_codepoint=32, max_codepoint=300, exclude_characters=":\r\n"), max_size=12)
VALUES = st.text(st.characters(exclude_characters="\r\n", exclude_categories=("Cs",)), max_size=20)


@given(st.lists(st.tuples(NAMES, VALUES), max_size=6))
def test_a_block_is_read_as_nats_py_reads_it(headers: list[tuple[str, str]]) -> None:
    raw = "".join(f"{n}:{v}\r\n" for n, v in headers).encode() + b"\r\n"
    assert Client._parse_header_lines(raw) == nats.aio.client.Client._parse_header_lines(raw)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_alike(raw: bytes) -> None:
    ours, theirs = Client._parse_header_lines(raw), nats.aio.client.Client._parse_header_lines(raw)
    assert _readable(ours) == _readable(theirs)


def _readable(headers: dict[str, str]) -> dict[str, str]:
    """Without values that were not UTF-8, whose replacement may be longer or shorter."""
    return {name: value for name, value in headers.items() if "\ufffd" not in value}


async def test_a_connection_reads_headers_with_it(broker: Broker) -> None:
    got: list[Message] = []

    async def hear(message: Message) -> None:
        got.append(message)

    subscription = await broker.subscribe_core("test.headers", hear)
    await broker.publish_core("test.headers", b"x", headers={"A": "1", "B-C": f"{time.time()}"})
    await eventually(lambda: got)
    await subscription.close()
    assert isinstance(broker.nc, Client)
    assert (got[0].headers or {})["A"] == "1"


class Told:
    """What a parser calls, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    async def _process_msg(self, *message: Any) -> None:
        self.calls.append(message)

    async def _process_ping(self) -> None:
        self.calls.append(("PING",))

    async def _process_err(self, text: str) -> None:
        self.calls.append((text,))


def _message(subject: str, sid: int, reply: str, block: bytes, data: bytes) -> bytes:
    words = ["HMSG" if block else "MSG", subject, str(sid), reply, str(len(block)) if block else ""]
    line = " ".join([*filter(None, words), str(len(block) + len(data))])
    return line.encode() + b"\r\n" + block + data + b"\r\n"


MESSAGES = st.builds(
    _message,
    st.sampled_from(["a", "seen.chunk.r.n.0.text"]),
    st.integers(1, 2**40),
    st.sampled_from(["", "", "_INBOX.x"]),
    st.sampled_from([b"", b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\nA: 1\r\nHMSG : 2\r\n\r\n", b"NATS/1.0 404\r\n\r\n"]),
    st.one_of(st.binary(max_size=40), st.sampled_from([b"", b"\r\n", b"HMSG a 1 1 1\r\nx\r\n"])),
)
LINES = st.sampled_from(
    [
        b"PING\r\n",
        b"+OK\r\n",
        b"-ERR 'no'\r\n",
        b"HMSG a 1 x 14\r\n",
        b"HMSG  a\t1 12 12\r\nNATS/1.0\r\n\r\n\r\n",
        b"?\r\n",
    ]
)


async def _parsed(parser: type[Any], pieces: list[bytes]) -> list[tuple[Any, ...]]:
    told = Told()
    reading = parser(told)
    try:
        for piece in pieces:
            await reading.parse(piece)
    except nats.errors.ProtocolError:
        told.calls.append(("ProtocolError",))
    return told.calls


@given(st.lists(st.one_of(MESSAGES, MESSAGES, LINES), max_size=8), st.lists(st.integers(0, 300), max_size=5))
async def test_bytes_are_parsed_as_nats_py_parses_them_wherever_they_are_cut(
    wire: list[bytes], cuts: list[int]
) -> None:
    whole = b"".join(wire)
    ends = [*sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    pieces = [whole[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    assert await _parsed(_Parser, pieces) == await _parsed(nats.protocol.parser.Parser, pieces)


async def test_two_messages_cut_anywhere() -> None:
    wire = _message("seen.a", 7, "", b"NATS/1.0\r\nA: 1\r\n\r\n", b"data") * 2
    for cut in range(len(wire)):
        pieces = [wire[:cut], wire[cut:]]
        assert await _parsed(_Parser, pieces) == await _parsed(nats.protocol.parser.Parser, [wire])


async def test_a_listener_hears_each_message_once_and_in_order(broker: Broker, nats_server: Server) -> None:
    heard: list[tuple[str, bytes]] = []
    lost: list[bool] = []
    subscription = await broker.listen(
        "ctl.*", lambda subject, data, _: heard.append((subject, data)), on_lost=lambda: lost.append(True)
    )
    sent = [(f"ctl.{n % 3}", b"%d" % n) for n in range(500)]
    for n, (subject, data) in enumerate(sent):
        await broker.publish_core(subject, data, headers={"A": "1"} if n % 2 else None)
    await eventually(lambda: heard == sent)
    assert not lost
    nats_server.kill()
    await eventually(lambda: lost)
    nats_server.start()
    await eventually(lambda: broker.connected)
    await broker.publish_core("ctl.0", b"again")
    await eventually(lambda: heard[500:] == [("ctl.0", b"again")])
    await subscription.drain()
    await subscription.close()
    await broker.publish_core("ctl.0", b"late")
    await broker.nc.flush()
    assert len(heard) == 501
    assert not broker.nc._subs.keys() - {broker._requests._sub._id}


async def test_a_listener_that_raises_stops_nobody(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    heard: list[bytes] = []

    def hear(_: str, data: bytes, block: bytes) -> None:
        heard.append(data)
        raise ValueError(data)

    await broker.listen("ctl.test", hear)
    for n in range(3):
        await broker.publish_core("ctl.test", b"%d" % n, headers={"A": "1"})
    await eventually(lambda: heard == [b"0", b"1", b"2"])
    await eventually(lambda: "ValueError" in caplog.text)
    assert broker.connected


async def test_listening_on_a_closed_connection(nats_server: Server) -> None:
    broker = await Broker.connect(nats_server.url, name="test", token=nats_server.token)
    await broker.close()
    with pytest.raises(Disconnected):
        await broker.listen("ctl.test", lambda *_: None)
