"""`cornstalk invoke`: one request; text to standard output as it comes, sound, images and videos to files."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cornstalk.cli.ask import Answer, Ask, raise_failure, stream
from cornstalk.cli.console import note
from cornstalk.cli.errors import USAGE, CliError
from cornstalk.cli.fields import file_field, split_fields, split_files, text_field
from cornstalk.cli.gateway import Gateway
from cornstalk.cli.saved import Saved


@dataclass(frozen=True)
class Options:
    """Flags of `invoke`."""

    app: str
    text: str | None
    fields: tuple[str, ...]
    """name=value"""
    files: tuple[str, ...]
    """name=path"""
    media: Mapping[str, tuple[Path, ...]]
    """Kind of media ("audio", "image", "video") -> files, whose fields the app's schema tells."""
    save: Path | None
    as_json: bool
    streamed: bool
    deadline: float | None


async def invoke(gateway: Gateway, options: Options) -> None:
    """Asks, prints, saves. Ctrl-C cancels the request. Raises CliError."""
    async with gateway, AsyncExitStack() as stack:
        ask = await _ask(gateway, options)
        answer, saved = Answer(), Saved(options.save, stack)
        printed = _Printed(live=options.streamed and not options.as_json)
        try:
            async for name, piece in stream(gateway, ask, answer):
                if isinstance(piece, str):
                    printed.add(name, piece)
                else:
                    saved.add(name, piece, answer.media.get(name, ""))
        finally:
            printed.end_line()
        raise_failure(answer)
        if options.as_json:
            print(json.dumps(_result(answer, saved)))
        else:
            printed.rest(answer)
            saved.tell(answer)
            note(f"cornstalk trace {answer.request}", style="dim")


async def _ask(gateway: Gateway, options: Options) -> Ask:
    fields, paths = split_fields(options.fields), split_files(options.files)
    if options.text is not None or any(options.media.values()):
        schema = await _schema(gateway, options.app)
        if options.text is not None:
            fields.setdefault(text_field(options.app, schema), options.text)
        for kind, given in options.media.items():
            paths += [(file_field(options.app, schema, kind), path) for path in given]
    files = [(name, path.name, _read(path)) for name, path in paths]
    return Ask(options.app, fields, files, options.deadline)


async def _schema(gateway: Gateway, app: str) -> dict[str, Any]:
    apps = (await gateway.call("GET", "/apps"))["apps"]
    for found in apps:
        if found["name"] == app:
            schema: dict[str, Any] = found["request"]
            return schema
    known = ", ".join(a["name"] for a in apps) or "none"
    raise CliError(f"no app {app!r} is deployed", why=f"deployed: {known}", next="cornstalk deploy APP.py")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CliError(f"cannot read {path}", why=error.strerror or "", exit_code=USAGE) from error


class _Printed:
    """Text on standard output: the first text field live, the rest once it is whole."""

    def __init__(self, live: bool) -> None:
        self._live, self._field, self._open = live, "", False

    def add(self, name: str, piece: str) -> None:
        self._field = self._field or name
        if self._live and name == self._field and piece:
            self._open = True
            sys.stdout.write(piece)
            sys.stdout.flush()

    def end_line(self) -> None:
        if self._open:
            print(flush=True)
        self._open = False

    def rest(self, answer: Answer) -> None:
        """Every value that was not printed yet; alone it needs no name."""
        values = {**answer.plain, **answer.texts, **answer.lists}
        if self._live and self._field:
            del values[self._field]
        alone = len(values) == 1 and not (self._live and self._field)
        for name, value in values.items():
            text = value if isinstance(value, str) else json.dumps(value)
            if name not in answer.plain or value not in (None, ""):
                print(text if alone else f"{name}: {text}")


def _result(answer: Answer, saved: Saved) -> dict[str, Any]:
    response = answer.response() | {name: str(writer.path) for name, writer in saved.writers.items()}
    return {"request": answer.request, "status": answer.status, "response": response, "times": answer.times}


def run_cancellable(work: Any) -> None:
    """asyncio.run whose Ctrl-C lets the work end its request first; then exit code 1."""
    try:
        asyncio.run(work)
    except KeyboardInterrupt:
        with suppress(BrokenPipeError):
            sys.stdout.flush()
        raise CliError("interrupted", why="the request was cancelled") from None
