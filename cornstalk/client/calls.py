"""The calls that ask and answer once, and how they get through. Pure: a transport makes them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from cornstalk.client.failures import no_gateway, refusal
from cornstalk.client.urls import Backoff, Urls
from cornstalk.errors import Unreachable


class Call(NamedTuple):
    """A request to the gateway. `repeatable`: doing it twice does no more than doing it once."""

    method: str
    path: str
    headers: Mapping[str, str] = {}
    content: bytes = b""
    repeatable: bool = True


def apps() -> Call:
    return Call("GET", "/apps")


def status(request: str) -> Call:
    return Call("GET", f"/requests/{quote(request, safe='')}")


def cancel(request: str) -> Call:
    return Call("DELETE", f"/requests/{quote(request, safe='')}")


def deploy(source: str | os.PathLike[str], admin_token: str | None) -> Call:
    """`source`: Python text, or the path of a file. Raises OSError."""
    content = source.encode() if isinstance(source, str) else Path(source).read_bytes()
    headers = {"Content-Type": "text/x-python; charset=utf-8", **_admin(admin_token)}
    return Call("POST", "/apps", headers, content)


def remove(name: str, admin_token: str | None) -> Call:
    return Call("DELETE", f"/apps/{quote(name, safe='')}", _admin(admin_token), repeatable=False)


def _admin(token: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


class Attempts:
    """One call, tried at each gateway until one answers."""

    def __init__(self, call: Call, urls: Urls, reach_within: float) -> None:
        self._call, self._urls, self._backoff = call, urls, Backoff()
        self._until, self._tries = time.monotonic() + reach_within, 0
        self._url = urls.first

    def url(self) -> str:
        """Where to send it now."""
        self._url = self._urls.first
        return f"{self._url}{self._call.path}"

    def cut(self, why: str, *, sent: bool = True) -> float:
        """No answer came. The seconds after which to try again; raises Unreachable when that is of no use."""
        self._urls.pass_over(self._url)
        self._tries += 1
        in_vain = self._tries >= len(self._urls) and time.monotonic() >= self._until
        if in_vain or (sent and not self._call.repeatable):
            raise Unreachable(f"cannot reach {self._urls}: {why}")
        return self._backoff.next()

    def answered(self, status: int, headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
        """The JSON of an answer. Raises the typed error for one of 4xx or 5xx, GatewayError for what is no JSON."""
        if status >= 400:
            raise refusal(status, headers, body)
        try:
            return msgspec.json.decode(body, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise no_gateway(self._url) from error
