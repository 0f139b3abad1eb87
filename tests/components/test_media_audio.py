"""Sound of every format: the right samples, or a typed error."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.media.audio import decode_audio
from cornstalk.errors import EngineError
from cornstalk.media import audio_seconds, sniff
from tests.components.media_files import Array, encoded_sound, sound, tone, video

pytestmark = pytest.mark.models

HERTZ = 440.0


def wav_of(codec: int, bits: int, body: bytes, rate: int = 16_000, extra: bytes = b"") -> bytes:
    """A WAV with this format tag."""
    block = bits // 8
    form = struct.pack("<HHIIHH", codec, 1, rate, rate * block, block, bits) + extra
    chunks = b"fmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


def with_chunks_before_the_sound() -> bytes:
    """As recorders write it: notes of odd length, then the sound."""
    data = sound(tone(HERTZ, 16_000), 16_000)
    note = b"LIST" + struct.pack("<I", 5) + b"INFOx" + b"\0"
    return data[:4] + struct.pack("<I", len(data) + len(note) - 8) + data[8:36] + note + data[36:]


def piped() -> bytes:
    """As a program writes it that cannot go back to fill in the length."""
    data = bytearray(sound(tone(HERTZ, 16_000), 16_000))
    data[4:8] = data[40:44] = b"\xff\xff\xff\xff"
    return bytes(data)


def tagged() -> bytes:
    """FLAC behind an ID3 tag."""
    return b"ID3\x04\0\0\0\0\0\x0a" + bytes(10) + sound(tone(HERTZ, 16_000), 16_000, "FLAC")


def mono(rate: int) -> Array:
    return tone(HERTZ, rate)


FORMATS: dict[str, tuple[Callable[[], bytes], str]] = {
    "wav 8 bit": (lambda: sound(mono(16_000), 16_000, subtype="PCM_U8"), "audio/wav"),
    "wav 24 bit": (lambda: sound(mono(44_100), 44_100, subtype="PCM_24"), "audio/wav"),
    "wav 32 bit": (lambda: sound(mono(16_000), 16_000, subtype="PCM_32"), "audio/wav"),
    "wav float": (lambda: sound(mono(48_000), 48_000, subtype="FLOAT"), "audio/wav"),
    "wav double": (lambda: sound(mono(16_000), 16_000, subtype="DOUBLE"), "audio/wav"),
    "wav mu-law": (lambda: sound(mono(8_000), 8_000, subtype="ULAW"), "audio/wav"),
    "wav a-law": (lambda: sound(mono(8_000), 8_000, subtype="ALAW"), "audio/wav"),
    "wav ima": (lambda: sound(mono(16_000), 16_000, subtype="IMA_ADPCM"), "audio/wav"),
    "wav ms": (lambda: sound(mono(16_000), 16_000, subtype="MS_ADPCM"), "audio/wav"),
    "wav gsm": (lambda: sound(mono(8_000), 8_000, subtype="GSM610"), "audio/wav"),
    "wav extensible": (lambda: sound(mono(16_000), 16_000, "WAVEX"), "audio/wav"),
    "wav rf64": (lambda: sound(mono(16_000), 16_000, "RF64"), "audio/wav"),
    "wav big-endian": (lambda: sound(mono(16_000), 16_000, endian="BIG"), "audio/wav"),
    "wav with mp3 in it": (lambda: encoded_sound(mono(44_100), 44_100, "wav", "libmp3lame"), "audio/wav"),
    "wav six channels": (lambda: sound(tone(HERTZ, 48_000, channels=6), 48_000), "audio/wav"),
    "wav notes first": (with_chunks_before_the_sound, "audio/wav"),
    "wav piped": (piped, "audio/wav"),
    "flac": (lambda: sound(tone(HERTZ, 44_100, channels=2), 44_100, "FLAC"), "audio/flac"),
    "flac tagged": (tagged, "audio/flac"),
    "mp3": (lambda: sound(tone(HERTZ, 44_100, channels=2), 44_100, "MP3"), "audio/mpeg"),
    "mp3 tagged": (lambda: encoded_sound(mono(22_050), 22_050, "mp3", "libmp3lame"), "audio/mpeg"),
    "ogg vorbis": (lambda: sound(mono(44_100), 44_100, "OGG", "VORBIS"), "audio/ogg"),
    "ogg opus": (lambda: sound(mono(48_000), 48_000, "OGG", "OPUS"), "audio/ogg"),
    "ogg opus by ffmpeg": (
        lambda: encoded_sound(tone(HERTZ, 48_000, channels=2), 48_000, "ogg", "libopus", "flt"),
        "audio/ogg",
    ),
    "ogg flac": (lambda: encoded_sound(mono(44_100), 44_100, "ogg", "flac", "s16"), "audio/ogg"),
    "m4a aac": (lambda: encoded_sound(tone(HERTZ, 44_100, channels=2), 44_100, "ipod", "aac"), "audio/mp4"),
    "m4a alac": (lambda: encoded_sound(mono(44_100), 44_100, "ipod", "alac", "s16p"), "audio/mp4"),
    "mp4 without pictures": (lambda: encoded_sound(mono(44_100), 44_100, "mp4", "aac"), "audio/mp4"),
    "mov without pictures": (lambda: encoded_sound(mono(44_100), 44_100, "mov", "aac"), "audio/mp4"),
    "webm opus": (lambda: encoded_sound(mono(48_000), 48_000, "webm", "libopus", "flt"), "audio/webm"),
    "mkv aac": (lambda: encoded_sound(mono(44_100), 44_100, "matroska", "aac"), "audio/x-matroska"),
    "aac": (lambda: encoded_sound(mono(44_100), 44_100, "adts", "aac"), "audio/aac"),
    "aiff": (lambda: sound(mono(44_100), 44_100, "AIFF"), "audio/aiff"),
    "caf": (lambda: sound(mono(44_100), 44_100, "CAF"), "audio/x-caf"),
}


def pitch(samples: Array, rate: int) -> float:
    """Hertz of the strongest tone in the middle half."""
    middle = samples[len(samples) // 4 : -len(samples) // 4]
    power = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
    return float(power.argmax() * rate / len(middle))


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_its_sound(name: str) -> None:
    make, media_type = FORMATS[name]
    data = make()
    assert sniff(data) == media_type
    samples = decode_audio(data, rate=16_000, seconds=30)
    assert (samples.ndim, samples.dtype) == (1, np.float32)
    assert len(samples) == pytest.approx(16_000, abs=1_700)  # codecs pad to whole blocks
    assert pitch(samples, 16_000) == pytest.approx(HERTZ, abs=3)
    loud = np.abs(samples[4_000:12_000]).max()
    assert loud == pytest.approx(0.5, abs=0.06)


@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24", "FLOAT"])
def test_without_loss_every_sample_is_exact(subtype: str) -> None:
    given_ = tone(HERTZ, 16_000)
    samples = decode_audio(sound(given_, 16_000, subtype=subtype), rate=16_000, seconds=30)
    assert np.abs(samples - given_[:, 0]).max() < 1 / 32_000


def test_channels_are_mixed_alike_by_both_readers() -> None:
    both = np.stack([tone(440, 44_100)[:, 0], np.zeros(44_100, np.float32)], axis=1)
    for data in (sound(both, 44_100), encoded_sound(both, 44_100, "ipod", "alac", "s16p")):
        assert np.abs(decode_audio(data, rate=44_100, seconds=9)[4_000:40_000]).max() == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize("rate", [8_000, 11_025, 44_100, 48_000])
def test_resampling_keeps_tones(rate: int) -> None:
    samples = decode_audio(sound(tone(1_000, rate), rate, subtype="FLOAT"), rate=16_000, seconds=30)
    assert abs(len(samples) - 16_000) <= 2
    assert pitch(samples, 16_000) == pytest.approx(1_000, abs=2)


def test_resampling_adds_no_tones() -> None:
    samples = decode_audio(sound(tone(12_000, 48_000), 48_000, subtype="FLOAT"), rate=16_000, seconds=30)
    assert np.abs(samples[1_000:-1_000]).max() < 0.01


def test_the_sound_of_a_video_is_heard_too() -> None:
    data = encoded_sound(tone(HERTZ, 44_100), 44_100, "mp4", "aac")
    assert pitch(decode_audio(data, rate=16_000, seconds=30), 16_000) == pytest.approx(HERTZ, abs=3)
    with pytest.raises(EngineError, match="no audio in it") as caught:
        decode_audio(video([np.zeros((48, 64, 3), np.uint8)] * 3), rate=16_000, seconds=30)
    assert caught.value.engine_code == "bad_audio"


LONG: dict[str, Callable[[], bytes]] = {
    "wav": lambda: sound(tone(HERTZ, 8_000, 3.001), 8_000),
    "wav whose header lies": lambda: piped() + bytes(16_000 * 2 * 3),
    "flac": lambda: sound(tone(HERTZ, 8_000, 3.5), 8_000, "FLAC"),
    "mp3": lambda: sound(tone(HERTZ, 16_000, 4), 16_000, "MP3"),
    "m4a": lambda: encoded_sound(tone(HERTZ, 16_000, 4), 16_000, "ipod", "aac"),
    "webm": lambda: encoded_sound(tone(HERTZ, 48_000, 60), 48_000, "webm", "libopus", "flt"),
    "aac": lambda: encoded_sound(tone(HERTZ, 16_000, 4), 16_000, "adts", "aac"),
}


@pytest.mark.parametrize("name", LONG)
def test_sound_over_the_limit(name: str) -> None:
    data = LONG[name]()
    with pytest.raises(EngineError, match="the limit is 3 s") as caught:
        decode_audio(data, rate=16_000, seconds=3)
    assert (caught.value.engine_code, caught.value.transient) == ("too_long", False)


def test_headers_tell_how_long_it_is() -> None:
    for kind, media_type in (("WAV", "audio/wav"), ("RF64", "audio/wav"), ("FLAC", "audio/flac")):
        assert audio_seconds(sound(tone(HERTZ, 44_100, 2.5), 44_100, kind), media_type) == pytest.approx(2.5, abs=0.01)
    for subtype in ("ULAW", "IMA_ADPCM", "DOUBLE", "GSM610"):
        data = sound(tone(HERTZ, 8_000, 2.5), 8_000, subtype=subtype)
        assert audio_seconds(data, "audio/wav") == pytest.approx(2.5, abs=0.1)
    assert audio_seconds(piped(), "audio/wav") == pytest.approx(1)
    assert audio_seconds(with_chunks_before_the_sound(), "audio/wav") == pytest.approx(1)
    assert audio_seconds(sound(tone(HERTZ, 44_100), 44_100, "MP3"), "audio/mpeg") is None


NOTHING = np.zeros(0, np.float32)
BROKEN: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "text": lambda: b"This is a text that somebody named .wav\n" * 50,
    "playlist": lambda: b"#EXTM3U\n#EXTINF:1,\nfile:///etc/hostname\n",
    "list of files": lambda: b"ffconcat version 1.0\nfile /etc/hostname\n",
    "picture": lambda: b"\x89PNG\r\n\x1a\n" + bytes(1_000),
    "wav header only": lambda: sound(NOTHING, 16_000),
    "wav cut in its header": lambda: sound(tone(HERTZ, 16_000), 16_000)[:30],
    "wav of no codec": lambda: wav_of(0x7777, 16, bytes(3_200)),
    "wav of no numbers": lambda: sound(np.full(1_600, np.nan, np.float32), 16_000, subtype="FLOAT"),
    "wav too slow": lambda: sound(tone(10, 100), 100),
    "wav of nine channels": lambda: sound(tone(HERTZ, 16_000, channels=9), 16_000),
    "flac cut in its header": lambda: sound(tone(HERTZ, 16_000), 16_000, "FLAC")[:20],
    "m4a cut": lambda: encoded_sound(tone(HERTZ, 16_000), 16_000, "ipod", "aac")[:3_000],
    "webm cut in its header": lambda: encoded_sound(tone(HERTZ, 48_000), 48_000, "webm", "libopus", "flt")[:100],
    "ogg cut in its header": lambda: sound(tone(HERTZ, 16_000), 16_000, "OGG")[:40],
    "mp3 of zeros": lambda: b"\xff\xfb\x90\x00" + bytes(5_000),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_sound_is_told_so(name: str) -> None:
    with pytest.raises(EngineError) as caught:
        decode_audio(BROKEN[name](), rate=16_000, seconds=30)
    assert (caught.value.engine_code, caught.value.transient) == ("bad_audio", False)


def test_what_breaks_off_is_heard_so_far() -> None:
    whole = tone(HERTZ, 16_000)
    for data in (sound(whole, 16_000), encoded_sound(whole, 16_000, "adts", "aac"), sound(whole, 16_000, "MP3")):
        samples = decode_audio(data[: len(data) // 2], rate=16_000, seconds=30)
        assert 4_000 < len(samples) < 10_000
        assert pitch(samples, 16_000) == pytest.approx(HERTZ, abs=4)


MADE = {
    name: FORMATS[name][0]
    for name in ("wav 24 bit", "wav ima", "flac", "mp3", "ogg opus", "m4a aac", "webm opus", "aac", "aiff")
}


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_whatever_is_changed_in_a_file_it_is_samples_or_a_typed_error(data: Any) -> None:
    file = bytearray(made(data.draw(st.sampled_from(sorted(MADE)))))
    for _ in range(data.draw(st.integers(1, 4))):
        file[data.draw(st.integers(0, min(len(file) - 1, 400)))] = data.draw(st.integers(0, 255))
    assert heard(bytes(file)) in ("samples", "bad_audio", "too_long")


_made: dict[str, bytes] = {}


def made(name: str) -> bytes:
    if name not in _made:
        _made[name] = MADE[name]()
    return _made[name]


def heard(data: bytes) -> str:
    """ "samples", or the code of the error."""
    try:
        samples = decode_audio(data, rate=16_000, seconds=5)
    except EngineError as error:
        return error.engine_code
    return "samples" if samples.ndim == 1 and np.isfinite(samples).all() else "something else"
