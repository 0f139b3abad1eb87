"""Our reading of header blocks is nats-py's, and nats-py still asks for it."""

from __future__ import annotations

import time

import nats.aio.client
from hypothesis import given
from hypothesis import strategies as st

from broker.connection import Broker
from broker.headers import Client
from broker.requests import Message
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
