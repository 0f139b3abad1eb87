"""A client that streams its input in over a WebSocket, and goes on at the next gateway after what is stored."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final

from websockets.exceptions import ConnectionClosed, WebSocketException

from tests.faults.client import GRACE, PAUSE, Answer, request_id
from tests.gateway.ws import Client, connected

PIECE: Final = 7
"""Characters of one piece."""
PACE: Final = 0.01
"""Seconds between two pieces."""
ID: Final = "x"


async def speak(ports: Sequence[int], text: str, key: str, *, within: float) -> Answer:
    """The answer of the app `live` to a text that comes in pieces."""
    answer = Answer(request_id("live", key))
    until = time.monotonic() + within
    at = 0
    while answer.end is None:
        assert time.monotonic() < until, f"no end within {within} s: {answer}"
        try:
            async with connected(ports[at % len(ports)], "live") as client:
                await _converse(client, text, key, answer)
        except (OSError, ConnectionClosed, WebSocketException, TimeoutError):
            answer.cuts += 1
            await asyncio.sleep(PAUSE)
        at += 1
    return answer


async def _converse(client: Client, text: str, key: str, answer: Answer) -> None:
    said = await _opened(client, key, answer)
    telling = asyncio.create_task(_tell(client, text[said:]))
    try:
        while answer.end is None:
            frame = await client.receive()
            answer.add(frame["type"], frame.get("seq", 0), frame)
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)


async def _opened(client: Client, key: str, answer: Answer) -> int:
    """How much of the text is stored."""
    if answer.cuts:
        await client.send("resume", id=ID, request=answer.request, after=answer.last)
        frame = await client.receive()
        if frame["type"] == "accepted":
            return int(frame["inputs"].get("text", {"size": 0})["size"])
        assert frame["error"]["code"] == "unknown_request", frame
    options: dict[str, Any] = {"idempotency_key": key, "resume_grace": float(GRACE)}
    await client.send("invoke", id=ID, open=["text"], options=options)
    frame = await client.receive()
    assert frame["type"] == "accepted", frame
    return int(frame["inputs"]["text"]["size"])


async def _tell(client: Client, rest: str) -> None:
    for start in range(0, len(rest), PIECE):
        await client.piece(ID, "text", rest[start : start + PIECE])
        await asyncio.sleep(PACE)
    await client.send("input_end", id=ID, field="text")
