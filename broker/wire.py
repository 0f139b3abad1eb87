"""The NATS client, faster at what a process gets most of: stored messages that are republished, seven headers each.

What each shortcut saves is in docs/measurements.md, under SSE.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import nats.aio.client
import nats.protocol.parser

nats.aio.client.parse_email = None
"""nats-py would use fast_mail_parser wherever somebody has installed it, and in 0.10 its values are lists."""

Hear = Callable[[str, bytes, bytes], None]
"""Takes a message as it is read: subject, data, and its header block as it came. Must be quick."""

_GATHERED: Final = 1 << 16
"""Bytes of a message above which one that is cut off is gathered by nats-py."""

_SPACE: Final = " \t\n\r\v\f"
_republished = re.compile(rb"HMSG (\S+) (\d+) (\d+) (\d+)\r\n").match  # it has headers and no reply
_usual = re.compile(r"[!-9;-~]+").fullmatch  # a name of visible ASCII


def read_headers(raw: bytes) -> dict[str, str]:
    """The lines of a header block, which nats-py reads in twice the time."""
    headers: dict[str, str] = {}
    for line in raw.decode("utf-8", "replace").split("\r\n"):
        name, colon, value = line.partition(":")
        if colon and _usual(name):
            headers[name] = value.strip(_SPACE)
        elif line:
            block: dict[str, str] = nats.aio.client.Client._parse_header_lines(raw)
            return block
    return headers


class Client(nats.aio.client.Client):  # type: ignore[misc]
    """nats-py's client. How it reads differs, not what comes of it (tests/broker); `listen` is more."""

    def __init__(self) -> None:
        super().__init__()
        self._ps = _Parser(self)

    async def listen(self, subject: str, hear: Hear) -> Any:
        """A subscription whose messages go to `hear` in the order and the moment in which they are read.

        What comes before this returns is not heard. An error of `hear` goes where those of callbacks go.
        """
        sub = await self.subscribe(subject)
        sub.hear = hear
        return sub

    async def take(self, subject: str, take: Callable[[Any], None]) -> Any:
        """As `listen`, of whole messages: `take` gets each with its headers read, and its status."""
        sub = await self.subscribe(subject)
        sub.take = take
        return sub

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        sub = self._subs.get(sid)
        try:
            if (hear := getattr(sub, "hear", None)) is not None:
                hear(subject.decode(), data, headers)
                return
            if (take := getattr(sub, "take", None)) is not None:
                take(self._build_message(sid, subject, reply, data, await self._process_headers(headers)))
                return
        except Exception as error:
            await self._error_cb(error)
            return
        await super()._process_msg(sid, subject, reply, data, headers)

    def _remove_sub(self, sid: int, max_msgs: int = 0) -> None:
        """nats-py leaves what it removes to the cycle collector, with all that hears of it."""
        sub = self._subs.get(sid)
        super()._remove_sub(sid, max_msgs)
        if sub is not None:
            sub.hear = sub.take = sub._message_iterator = None

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        return read_headers(raw)


class _Parser(nats.protocol.parser.Parser):  # type: ignore[misc]
    """nats-py's parser, which gets what is left once messages with headers and without a reply are taken out.

    One that a read cut off waits for the next read, unless it is large: then nats-py gathers it.
    """

    async def parse(self, data: bytes = b"") -> None:
        at = 0
        if self.state == nats.protocol.parser.AWAITING_CONTROL_LINE:
            if self.buf:
                data = bytes(self.buf) + data
                self.buf.clear()
            while (line := _republished(data, at)) is not None:
                subject, sid, header, total = line.groups()
                head = line.end()
                body, end = head + int(header), head + int(total)
                if len(data) < end + 2:
                    if end - at > _GATHERED:
                        break
                    self.buf.extend(data[at:])
                    return
                at = end + 2
                await self.nc._process_msg(int(sid), subject, b"", data[body:end], data[head:body])
        if at < len(data):
            await super().parse(data[at:])
