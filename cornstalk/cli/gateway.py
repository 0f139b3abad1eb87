"""The gateway as the command line sees it: JSON in and out, failures as CliError with the next command."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from cornstalk.cli.errors import FAILED, TIMED_OUT, UNREACHABLE, CliError
from cornstalk.cli.state import running_state, store_path
from cornstalk.client import AsyncClient
from cornstalk.client.calls import Call
from cornstalk.errors import AppError, BadInput, CornstalkError, TimedOut, Unreachable

_NEXT: Final = {
    "bad_input": "cornstalk status --json  (shows the fields that each app takes)",
    "unknown_app": "cornstalk status  (lists the apps), or cornstalk deploy APP.py",
    "overloaded": "try again in a moment; cornstalk status shows where the work waits",
    "unknown_dead_letter": "cornstalk dlq ls",
    "unknown_component": "cornstalk status  (lists the components)",
    "forbidden": "set CORNSTALK_ADMIN_TOKEN_FILE to the file with the admin token",
}


class Gateway:
    """Connections to one tree. With several gateways, one that does not answer is passed over."""

    def __init__(self, urls: Sequence[str], *, admin_token_file: Path | None = None) -> None:
        self.urls = list(urls)
        self._admin_token_file = admin_token_file
        self.client = AsyncClient(urls, reach_within=0.0)

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
        await self.client.aclose()

    def admin(self) -> dict[str, str]:
        """Headers of what needs the admin token. Raises CliError without a readable one."""
        if self._admin_token_file is None:
            raise CliError("no admin token", why="only who runs the system may do this", next=_NEXT["forbidden"])
        try:
            return {"Authorization": f"Bearer {self._admin_token_file.read_text().strip()}"}
        except OSError as error:
            raise CliError(
                f"cannot read {self._admin_token_file}", why=error.strerror or "", next=_NEXT["forbidden"]
            ) from error

    async def call(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        """The JSON answer. `options`: headers, content. Raises CliError."""
        try:
            return await self.client.call(Call(method, path, repeatable=method == "GET", **options))
        except CornstalkError as error:
            raise told(error) from error


def told(error: CornstalkError) -> CliError:
    """What went wrong between a client and a gateway, for a person, with what to do next."""
    if isinstance(error, Unreachable):
        return CliError(str(error), next="cornstalk up, or --url URL", exit_code=UNREACHABLE)
    code = error.to_message().code
    line = f", line {error.line}" if isinstance(error, AppError) and error.line else ""
    field = f", field {error.field}" if isinstance(error, BadInput) and error.field else ""
    exit_code = TIMED_OUT if isinstance(error, TimedOut) else FAILED
    return CliError(
        error.to_message().message, why=f"{code}{field}{line}", next=_NEXT.get(code, ""), exit_code=exit_code
    )
