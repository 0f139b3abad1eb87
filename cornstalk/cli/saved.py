"""What `cornstalk invoke --save` keeps of an answer: sound as WAV, images and videos as they are."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from cornstalk.cli.ask import Answer
from cornstalk.cli.console import note
from cornstalk.cli.errors import CliError
from cornstalk.cli.wav import WavWriter, rate_of

FILES = ("image/", "video/")
"""Media types of streams of bytes that add up to a file."""


class FileWriter:
    """Writes pieces as they come."""

    def __init__(self, path: Path) -> None:
        """Raises CliError when the file cannot be written."""
        self.path = path
        try:
            self._file: BinaryIO = path.open("wb")
        except OSError as error:
            raise CliError(f"cannot write {path}", why=error.strerror or str(error)) from error

    def add(self, piece: bytes) -> None:
        self._file.write(piece)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._file.close()


class Saved:
    """Streams of bytes: the first into the file that was asked for, each other beside it, named by its field."""

    def __init__(self, path: Path | None, stack: AsyncExitStack) -> None:
        self._path, self._stack = path, stack
        self.writers: dict[str, WavWriter | FileWriter] = {}

    def add(self, name: str, piece: bytes, media_type: str) -> None:
        rate = rate_of(media_type)
        if self._path is None or (rate is None and not media_type.startswith(FILES)):
            return
        if name not in self.writers:
            path = self._path if not self.writers else self._path.with_stem(f"{self._path.stem}.{name}")
            self.writers[name] = FileWriter(path) if rate is None else WavWriter(path)
            self._stack.enter_context(self.writers[name])
        match self.writers[name]:
            case WavWriter() as sound:
                sound.add(piece, rate or 0)
            case FileWriter() as file:
                file.add(piece)

    def tell(self, answer: Answer) -> None:
        for name, data in answer.sounds.items():
            if (writer := self.writers.get(name)) is not None:
                print(f"{name}: {writer.path}")
            elif rate := answer.rate(name):
                note(f"{name}: {len(data) / 2 / rate:.1f} s of sound, dropped; --save FILE.wav keeps it")
            elif answer.media.get(name, "").startswith(FILES):
                note(f"{name}: {len(data)} bytes of {answer.media[name]}, dropped; --save FILE keeps them")
