"""Bytes of an audio file -> samples. Broken, empty and too long files are told apart before any heavy work."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import chain
from typing import Any, Final

import numpy as np

from components.media.demux import first_of, opened
from cornstalk.errors import EngineError

RATES: Final = range(4_000, 192_001)
MAX_CHANNELS: Final = 8
_BLOCK: Final = 65_536  # frames read at once

Samples = np.ndarray[Any, np.dtype[np.float32]]


class Taken:
    """Samples as they are read, mixed to one channel. Memory is bounded whatever the file says of itself."""

    def __init__(self, rate: int, channels: int, seconds: float) -> None:
        if rate not in RATES or not 0 < channels <= MAX_CHANNELS:
            raise EngineError(
                f"the audio has {channels} channels at {rate} Hz; "
                f"up to {MAX_CHANNELS} at {RATES[0]} to {RATES[-1]} Hz can be heard",
                "bad_audio",
            )
        self.rate, self._seconds, self._blocks, self._total = rate, seconds, [np.empty(0, np.float32)], 0

    def expect(self, frames: float) -> None:
        """Raises EngineError too_long when so many are too many."""
        if frames > self._seconds * self.rate:
            raise EngineError(
                f"the audio lasts over {frames / self.rate:.1f} s; the limit is {self._seconds:g} s", "too_long"
            )

    def add(self, block: Samples, axis: int) -> None:
        """float32, channels along `axis`."""
        mono = block.mean(axis=axis)
        self._total += len(mono)
        self.expect(self._total)  # a header may say less than there is
        self._blocks.append(mono)

    def whole(self) -> Samples:
        return np.concatenate(self._blocks)


def decode_audio(data: bytes, *, rate: int, seconds: float) -> Samples:
    """float32 mono [n] at `rate`, of WAV of any encoding, FLAC, MP3, OGG, Opus, M4A, AAC, AIFF, WebM, of a video too.

    Raises EngineError: too_long over `seconds`; bad_audio for what is no audio, holds no sample, or none of a number.
    """
    taken = _by_soundfile(data, seconds) or _by_ffmpeg(data, seconds)
    mono = taken.whole()
    if not len(mono):
        raise EngineError("the audio has no samples", "bad_audio")
    if not np.isfinite(mono).all():
        raise EngineError("the audio holds samples that are no numbers", "bad_audio")
    return mono if taken.rate == rate else _resample(mono, taken.rate, rate)


def _by_soundfile(data: bytes, seconds: float) -> Taken | None:
    """None for what libsndfile does not read: FFmpeg may."""
    import soundfile

    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            taken = Taken(file.samplerate, file.channels, seconds)
            taken.expect(file.frames)
            while len(block := file.read(_BLOCK, dtype="float32", always_2d=True)):
                taken.add(block, 1)
            return taken
    except soundfile.SoundFileError:
        return None


def _by_ffmpeg(data: bytes, seconds: float) -> Taken:
    import av

    with opened(data, "audio") as container:
        stream = first_of(container.streams.audio, "audio")
        taken = Taken(stream.rate or 0, stream.channels, seconds)
        if stream.duration:
            taken.expect(float(stream.duration * stream.time_base) * taken.rate - taken.rate)  # to a second
        planar = av.AudioResampler(format="fltp", layout=stream.layout, rate=taken.rate)
        for frame in chain(_frames(container, stream), [None]):
            for part in planar.resample(frame):
                taken.add(part.to_ndarray(), 0)
        return taken


def _frames(container: Any, stream: Any) -> Iterator[Any]:
    """Passes over broken packets, as players do. Raises FFmpegError when all are broken."""
    import av

    broken, heard = None, False
    for packet in container.demux(stream):
        try:
            for frame in packet.decode():
                heard = True
                yield frame
        except av.error.InvalidDataError as error:
            broken = error
    if broken is not None and not heard:
        raise broken


def _resample(mono: Samples, given: int, rate: int) -> Samples:
    """Band-limited, by FFmpeg's resampler."""
    import av

    frame = av.AudioFrame.from_ndarray(mono.reshape(1, -1), format="flt", layout="mono")
    frame.sample_rate = given
    resampler = av.AudioResampler(format="flt", layout="mono", rate=rate)
    parts = [part.to_ndarray()[0] for part in (*resampler.resample(frame), *resampler.resample(None))]
    return np.concatenate([np.empty(0, np.float32), *parts])
