"""A client on a bare socket: sends what an HTTP library refuses to send."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterable, Iterable
from typing import Any, NamedTuple

WITHIN = 20.0
"""Seconds until an answer that does not come is a hang."""


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        """The typed error in it."""
        found: dict[str, Any] = json.loads(self.body)["error"]
        return found


async def exchange(
    port: int,
    head: bytes,
    body: Iterable[bytes] | AsyncIterable[bytes] = (),
    half: bool = False,
    invited: asyncio.Event | None = None,
) -> Answer:
    """Sends `head` (ends with an empty line) and the pieces of the body, as far as the server reads; the answer.

    `half`: says that nothing more comes once all is sent. `invited` is set when the server says that it awaits the
    body: it does for a head with `Expect: 100-continue`.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(WITHIN):
            sending = asyncio.create_task(_send(writer, head, body, half))
            answer = await _read(reader)
            if answer.status == 100 and invited is not None:
                invited.set()
                answer = await _read(reader)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            return answer
    finally:
        writer.close()


async def _send(
    writer: asyncio.StreamWriter, head: bytes, body: Iterable[bytes] | AsyncIterable[bytes], half: bool
) -> None:
    try:
        writer.write(head)
        if isinstance(body, AsyncIterable):
            async for piece in body:
                writer.write(piece)
                await writer.drain()
        else:
            for piece in body:
                writer.write(piece)
                await writer.drain()
        if half:
            writer.write_eof()
    except ConnectionError:
        pass  # the server has answered and hung up


async def _read(reader: asyncio.StreamReader) -> Answer:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines if line)}
    body = await reader.readexactly(int(headers["content-length"])) if "content-length" in headers else b""
    return Answer(int(first.split()[1]), headers, body)


def post(path: str, body: bytes, kind: str = "application/json", **headers: str) -> bytes:
    """A whole request; `_` in header names stands for `-`."""
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Type: {kind}", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body
