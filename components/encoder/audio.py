"""Bytes of an audio file -> samples. Broken, empty and too long files are told apart before any heavy work."""

from __future__ import annotations

import io
from typing import Any, Final

import numpy as np

from cornstalk.errors import EngineError

RATE: Final = 16_000
"""Samples per second that Whisper hears."""
MAX_SECONDS: Final = 30
RATES: Final = range(4_000, 192_001)
MAX_CHANNELS: Final = 8
_BLOCK: Final = 65_536  # frames read at once

Samples = np.ndarray[Any, np.dtype[np.float32]]


def decode(data: bytes) -> Samples:
    """float32 mono [n] at 16 kHz, of a file that libsndfile reads. Memory is bounded whatever the file says of itself.

    Raises EngineError: too_long over MAX_SECONDS; bad_audio for what is no audio, holds no sample, or none of a number.
    """
    import soundfile

    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            mono, rate = _read(file), file.samplerate
    except soundfile.SoundFileError as error:
        raise EngineError(f"the upload is no audio file that can be read: {error}", "bad_audio") from error
    if not len(mono):
        raise EngineError("the audio has no samples", "bad_audio")
    if not np.isfinite(mono).all():
        raise EngineError("the audio holds samples that are no numbers", "bad_audio")
    return mono if rate == RATE else _resample(mono, rate)


def _read(file: Any) -> Samples:
    if file.samplerate not in RATES or file.channels > MAX_CHANNELS:
        raise EngineError(
            f"the audio has {file.channels} channels at {file.samplerate} Hz; "
            f"up to {MAX_CHANNELS} at {RATES[0]} to {RATES[-1]} Hz can be heard",
            "bad_audio",
        )
    limit = MAX_SECONDS * file.samplerate
    if file.frames > limit:
        raise _too_long(file.frames / file.samplerate)
    blocks, total = [np.empty(0, np.float32)], 0
    while len(block := file.read(_BLOCK, dtype="float32", always_2d=True)):
        total += len(block)
        if total > limit:  # a header may say less than there is
            raise _too_long(total / file.samplerate)
        blocks.append(block.mean(axis=1))
    return np.concatenate(blocks)


def _too_long(seconds: float) -> EngineError:
    return EngineError(f"the audio lasts over {seconds:.1f} s; the limit is {MAX_SECONDS} s", "too_long")


def _resample(mono: Samples, rate: int) -> Samples:
    """Band-limited, by FFmpeg's resampler."""
    import av

    frame = av.AudioFrame.from_ndarray(mono.reshape(1, -1), format="flt", layout="mono")
    frame.sample_rate = rate
    resampler = av.AudioResampler(format="flt", layout="mono", rate=RATE)
    parts = [part.to_ndarray()[0] for part in (*resampler.resample(frame), *resampler.resample(None))]
    return np.concatenate([np.empty(0, np.float32), *parts])
