"""`cornstalk logs`: what the processes of a tree wrote, also after it has ended."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, Self

from cornstalk.cli.errors import UNREACHABLE, USAGE, CliError
from cornstalk.cli.state import store_path

POLL_EVERY: Final = 0.2
BLOCK: Final = 1 << 20
"""Bytes read at once while following."""


def logs(store: Path | None, name: str | None, follow: bool, lines: int) -> None:
    """Prints the last lines of each log, then what comes until Ctrl-C. Raises CliError."""
    folder = store_path(store)
    found = _chosen(folder, name)
    with ExitStack() as files:
        printer = _Printer(folder, name, files)
        for log, path in found.items():
            printer.open(log, path, lines)
        with suppress(KeyboardInterrupt):
            while follow:
                time.sleep(POLL_EVERY)
                printer.follow()


class _Printer:
    """Lines of one or several logs; of several, each behind the name of its log."""

    def __init__(self, folder: Path, name: str | None, files: ExitStack) -> None:
        self._folder, self._name, self._files = folder, name, files
        self._width = max(map(len, found)) if len(found := _matching(folder, name)) > 1 else 0
        self._tails: dict[str, Tail] = {}

    def open(self, log: str, path: Path, lines: int) -> None:
        self._tails[log] = tail = self._files.enter_context(Tail(path))
        self._show(log, tail.last(lines))

    def follow(self) -> None:
        """What has come; also in logs that are new."""
        for log, tail in self._tails.items():
            self._show(log, tail.new())
        for log, path in _matching(self._folder, self._name).items():
            if log not in self._tails:
                self._width = max(self._width, *map(len, [*self._tails, log]))
                self._tails[log] = self._files.enter_context(Tail(path))
                self._show(log, self._tails[log].new())

    def _show(self, log: str, lines: Iterable[str]) -> None:
        for line in lines:
            print(f"{log:<{self._width}}  {line}" if self._width else line, flush=True)


def _chosen(folder: Path, name: str | None) -> Mapping[str, Path]:
    every = _all(folder)
    if not every:
        raise CliError(
            f"no logs in {folder}",
            why="no `cornstalk up` was started with this store",
            next=f"cornstalk up --store {folder}",
            exit_code=UNREACHABLE,
        )
    if found := _matching(folder, name):
        return found
    raise CliError(f"no process {name!r} has a log", why=f"there are {', '.join(every)}", exit_code=USAGE)


def _matching(folder: Path, name: str | None) -> dict[str, Path]:
    """The log of exactly this name, else those whose names begin with it; all without a name."""
    every = _all(folder)
    if name is None:
        return every
    return {name: every[name]} if name in every else {n: p for n, p in every.items() if n.startswith(name)}


def _all(folder: Path) -> dict[str, Path]:
    found = {path.name.removesuffix(".log"): path for path in sorted((folder / "logs").glob("*.log"))}
    nats = folder / "nats" / "nats.log"
    return found | ({"nats": nats} if nats.exists() else {})


class Tail:
    """One log from its end on. Follows it over a rotation: a line is given once, and only when it is whole."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = open(path, "rb")  # noqa: SIM115 - kept open: a file that is rotated away still has its last lines
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def last(self, count: int) -> list[str]:
        """The last whole lines that are there now, with those of the file that was rotated away before."""
        lines = list(self.new())
        before = self._path.with_name(f"{self._path.name}.1")
        if len(lines) < count and before.exists():
            lines = before.read_text(errors="replace").splitlines()[-count:] + lines
        return lines[-count:] if count else []

    def new(self) -> Iterator[str]:
        """Whole lines that came since the last call."""
        yield from self._read()
        if self._replaced():
            self._file.close()
            self._file = open(self._path, "rb")  # noqa: SIM115
            yield from self._read()

    def _read(self) -> Iterator[str]:
        while data := self._file.read(BLOCK):
            *whole, self._rest = (self._rest + data).split(b"\n")
            for line in whole:
                yield line.decode(errors="replace")

    def _replaced(self) -> bool:
        try:
            now = os.stat(self._path)
        except FileNotFoundError:
            return False
        mine = os.fstat(self._file.fileno())
        return now.st_ino != mine.st_ino or now.st_size < self._file.tell()
