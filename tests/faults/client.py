"""A client that does not give up: whatever dies, it goes on where it was, on whichever gateway answers."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

PAUSE: Final = 0.05
"""Seconds before a client that was cut off knocks at the next gateway."""
GRACE: Final = "20"
"""Seconds a request may be without a client."""


def request_id(app: str, key: str, tenant: str = "default") -> str:
    """The id of the request that this Idempotency-Key stands for."""
    return hashlib.blake2b(f"{tenant}\0{app}\0{key}".encode(), digest_size=16).hexdigest()


@dataclass
class Answer:
    """What one client has seen of its request, over all its connections."""

    request: str
    pieces: dict[str, list[str]] = field(default_factory=dict)
    last: int = 0  # id of the newest chunk
    end: dict[str, Any] | None = None
    cuts: int = 0  # connections that broke
    refusals: list[int] = field(default_factory=list)  # HTTP status of each answer that was none

    @property
    def response(self) -> dict[str, Any]:
        """The whole response: plain fields as told at the end, stream fields as the chunks add up."""
        assert self.end is not None, "no end"
        assert self.end["status"] == "done", self.end
        return self.end["response"] | {name: "".join(pieces) for name, pieces in self.pieces.items()}

    def take(self, frame: str) -> None:
        """One server-sent event."""
        lines = dict(line.split(": ", 1) for line in frame.splitlines() if not line.startswith(":"))
        if lines:
            self.add(lines["event"], int(lines.get("id", "0")), json.loads(lines["data"]))

    def add(self, kind: str, seq: int, data: dict[str, Any]) -> None:
        """One event. Nothing may come twice, out of order, or after the end."""
        assert self.end is None, f"{kind} after the end"
        if kind == "chunk":
            assert seq > self.last, f"chunk {seq} after {self.last}"
            self.last = seq
            self.pieces.setdefault(data["field"], []).append(data["data"])
        else:
            assert kind in ("end", "error"), data
            self.end = data


async def ask(
    gateways: Sequence[httpx.AsyncClient],
    app: str,
    body: Mapping[str, Any],
    key: str,
    *,
    first: int = 0,
    within: float = 60.0,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """The answer, from gateway `first` or whichever other one goes on with it. AssertionError after `within` s."""
    answer = Answer(request_id(app, key))
    until = time.monotonic() + within
    accepted = False  # as far as this client knows
    at = first
    while answer.end is None:
        assert time.monotonic() < until, f"no end within {within} s: {answer}"
        gateway = gateways[at % len(gateways)]
        at += 1
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + until - time.monotonic()):
                if (not accepted and answer.cuts == 0) or not await _resume(gateway, answer):
                    accepted = await _post(gateway, app, body, key, answer, headers or {})
        except httpx.TransportError:
            answer.cuts += 1
        except TimeoutError:
            raise AssertionError(f"no end within {within} s: {answer}") from None
        if answer.end is None:
            await asyncio.sleep(PAUSE)
    return answer


async def _post(
    gateway: httpx.AsyncClient, app: str, body: Mapping[str, Any], key: str, answer: Answer, headers: Mapping[str, str]
) -> bool:
    all_headers = {"Accept": "text/event-stream", "Idempotency-Key": key, "Cornstalk-Resume-Grace": GRACE, **headers}
    async with gateway.stream("POST", f"/apps/{app}", json=dict(body), headers=all_headers) as response:
        if response.status_code == 200:
            assert response.headers["cornstalk-request"] == answer.request
            await _listen(response, answer)
            return True
        await _refused(response, answer)
        return False


async def _resume(gateway: httpx.AsyncClient, answer: Answer) -> bool:
    """False if the gateway knows no such request."""
    headers = {"Last-Event-ID": str(answer.last)}
    async with gateway.stream("GET", f"/requests/{answer.request}/events", headers=headers) as response:
        if response.status_code == 200:
            await _listen(response, answer)
        elif response.status_code == 404:
            return False
        else:
            await _refused(response, answer)
        return True


async def _listen(response: httpx.Response, answer: Answer) -> None:
    rest = ""
    async for text in response.aiter_text():
        *frames, rest = (rest + text).split("\n\n")
        for frame in frames:
            answer.take(frame)


async def _refused(response: httpx.Response, answer: Answer) -> None:
    """Only what may pass is tried again."""
    answer.refusals.append(response.status_code)
    body = (await response.aread()).decode()
    assert response.status_code in (429, 503), f"{response.status_code}: {body}"
