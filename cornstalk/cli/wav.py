"""Audio chunks of an answer as a WAV file: signed 16 bit, mono, at the rate that the media type names."""

from __future__ import annotations

import re
import wave
from pathlib import Path
from types import TracebackType
from typing import Self

from cornstalk.cli.errors import CliError

_RATE = re.compile(r";\s*rate=(\d+)")


def rate_of(media_type: str) -> int | None:
    """Samples per second of a media type of raw audio such as `audio/pcm;rate=24000`; None when it names none."""
    found = _RATE.search(media_type) if media_type.startswith("audio/") else None
    return int(found[1]) if found else None


def write_wav(path: Path, pcm: bytes, rate: int) -> None:
    """A whole file at once."""
    with WavWriter(path) as writer:
        writer.add(pcm, rate)


class WavWriter:
    """Writes chunks as they come; what came before a cut is kept as a valid file. No chunk, no file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.samples = 0
        self.rate = 0
        self._file: wave.Wave_write | None = None

    def add(self, pcm: bytes, rate: int) -> None:
        """Raises CliError when the file cannot be written."""
        if self._file is None:
            self._file, self.rate = self._open(rate), rate
        self._file.writeframes(pcm)
        self.samples += len(pcm) // 2

    def _open(self, rate: int) -> wave.Wave_write:
        try:
            file = wave.open(str(self.path), "wb")  # noqa: SIM115 - closed by __exit__
        except OSError as error:
            raise CliError(f"cannot write {self.path}", why=error.strerror or str(error)) from error
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        return file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()
