"""The gateway as the command line sees it: JSON in and out, failures as CliError with the next command."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import httpx

from cornstalk.cli.errors import FAILED, TIMED_OUT, UNREACHABLE, CliError
from cornstalk.cli.state import running_state, store_path

CONNECT_WITHIN: Final = 5.0
SILENT_FOR: Final = 45.0
"""Seconds without a byte after which a connection counts as broken; a gateway pings each 15 s."""

_NEXT: Final = {
    "bad_input": "cornstalk status --json  (shows the fields that each app takes)",
    "unknown_app": "cornstalk status  (lists the apps), or cornstalk deploy APP.py",
    "overloaded": "try again in a moment; cornstalk status shows where the work waits",
    "forbidden": "set CORNSTALK_ADMIN_TOKEN_FILE to the file with the admin token",
}


class Gateway:
    """Connections to one tree. With several gateways, one that does not answer is passed over."""

    def __init__(self, urls: Sequence[str], *, admin_token_file: Path | None = None) -> None:
        self.urls = list(urls)
        self._admin_token_file = admin_token_file
        self._client = httpx.AsyncClient(timeout=httpx.Timeout(SILENT_FOR, connect=CONNECT_WITHIN), trust_env=False)

    @classmethod
    def find(cls, url: str | None, store: Path | None) -> Self:
        """Flag, CORNSTALK_URL, the tree that runs in the store. Raises CliError (cannot reach)."""
        token_file = os.environ.get("CORNSTALK_ADMIN_TOKEN_FILE")
        if given := url or os.environ.get("CORNSTALK_URL"):
            return cls([given.rstrip("/")], admin_token_file=Path(token_file) if token_file else None)
        state = running_state(store_path(store))
        return cls(state.urls, admin_token_file=Path(token_file or state.admin_token_file))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._client.aclose()

    def admin(self) -> dict[str, str]:
        """Headers of a deploy. Raises CliError without a readable token."""
        if self._admin_token_file is None:
            raise CliError("no admin token", why="deploying needs it", next=_NEXT["forbidden"])
        try:
            return {"Authorization": f"Bearer {self._admin_token_file.read_text().strip()}"}
        except OSError as error:
            raise CliError(
                f"cannot read {self._admin_token_file}", why=error.strerror or "", next=_NEXT["forbidden"]
            ) from error

    async def call(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        """The JSON answer. Raises CliError."""
        for left in reversed(range(len(self.urls))):
            url = self.urls[0]
            try:
                answer = await self._client.request(method, f"{url}{path}", **options)
            except httpx.TransportError as error:
                self.pass_over(url)
                if not left or not isinstance(error, httpx.ConnectError):  # it may have been taken: no second time
                    raise self.unreachable(error) from error
            else:
                raise_refusal(answer.status_code, answer.content)
                result: dict[str, Any] = answer.json()
                return result
        raise AssertionError("a gateway has an address")

    @asynccontextmanager
    async def open(self, method: str, path: str, **options: Any) -> AsyncIterator[httpx.Response]:
        """A streamed answer from the first gateway. Raises httpx.TransportError; CliError when it refuses."""
        async with self._client.stream(method, f"{self.urls[0]}{path}", **options) as answer:
            if answer.status_code >= 400:
                raise_refusal(answer.status_code, await answer.aread())
            yield answer

    def pass_over(self, url: str) -> None:
        """Tries this one last from now on."""
        self.urls.remove(url)
        self.urls.append(url)

    def unreachable(self, error: httpx.TransportError) -> CliError:
        """What to say when no gateway answers."""
        code = TIMED_OUT if isinstance(error, httpx.TimeoutException) else UNREACHABLE
        why = str(error) or type(error).__name__
        return CliError(
            f"cannot reach {', '.join(self.urls)}", why=why, next="cornstalk up, or --url URL", exit_code=code
        )


class Refused(CliError):
    """Raised when the gateway answers 4xx or 5xx. `passing`: the same may be taken in a moment."""

    passing = False


def raise_refusal(status: int, body: bytes) -> None:
    """Refused for an answer of 4xx or 5xx, in the words of the gateway."""
    if status < 400:
        return
    error = _error_of(body)
    code = str(error.get("code", f"HTTP {status}"))
    line = f", line {error['line']}" if error.get("line") else ""
    field = f", field {error['field']}" if error.get("field") else ""
    message = str(error.get("message") or f"the gateway answered {status}")
    refused = Refused(
        message, why=f"{code}{field}{line}", next=_NEXT.get(code, ""), exit_code=TIMED_OUT if status == 504 else FAILED
    )
    refused.passing = status in (429, 502, 503)
    raise refused


def _error_of(body: bytes) -> Mapping[str, Any]:
    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return {}
    return error if isinstance(error, dict) else {"message": str(error)}
