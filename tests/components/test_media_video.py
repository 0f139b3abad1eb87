"""Videos of every format: the right frames, or a typed error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.media import video as module
from components.media.video import sample_frames
from cornstalk.errors import EngineError
from cornstalk.media import sniff
from tests.components.media_files import Array, encoded_sound, tone, turned, video

pytestmark = pytest.mark.models


def frames(count: int = 20, height: int = 48, width: int = 64) -> list[Array]:
    """Frame i is gray of i * 10, but for a white corner at its top left."""
    made = [np.full((height, width, 3), i * 10, np.uint8) for i in range(count)]
    for frame in made:
        frame[:16, :16] = 255
    return made


def numbers(sampled: Array) -> list[int]:
    """Which frames these are."""
    return [round(float(f[20:44, 20:60].mean()) / 10) for f in sampled]


def black_corner(frame: Array) -> str:
    corners = {"tl": frame[:8, :8], "tr": frame[:8, -8:], "bl": frame[-8:, :8], "br": frame[-8:, -8:]}
    return max(corners, key=lambda name: float(corners[name].mean()))


FORMATS: dict[str, tuple[dict[str, str], str]] = {
    "mp4 h264": ({}, "video/mp4"),
    "mp4 h265": ({"codec": "libx265"}, "video/mp4"),
    "mp4 mpeg4": ({"codec": "mpeg4"}, "video/mp4"),
    "mov h264": ({"container": "mov"}, "video/quicktime"),
    "webm vp8": ({"container": "webm", "codec": "libvpx"}, "video/webm"),
    "webm vp9": ({"container": "webm", "codec": "libvpx-vp9"}, "video/webm"),
    "mkv h264": ({"container": "matroska"}, "video/x-matroska"),
    "avi mjpeg": ({"container": "avi", "codec": "mjpeg", "form": "yuvj420p"}, "video/x-msvideo"),
    "mp4 ten bit": ({"codec": "libx265", "form": "yuv420p10le"}, "video/mp4"),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_its_frames(name: str) -> None:
    options, media_type = FORMATS[name]
    data = video(frames(), **options)  # type: ignore[arg-type]
    assert sniff(data) == media_type
    sampled = sample_frames(data, count=4).frames
    assert (sampled.shape, sampled.dtype) == ((4, 48, 64, 3), np.uint8)
    assert numbers(sampled) == [2, 7, 12, 17]
    assert {black_corner(f) for f in sampled} == {"tl"}


@pytest.mark.parametrize("key", [1, 5, 100])
def test_the_same_frames_wherever_the_key_frames_are(key: int) -> None:
    data = video(frames(), key=key)
    assert numbers(sample_frames(data, count=1).frames) == [10]
    assert numbers(sample_frames(data, count=20).frames) == list(range(20))
    assert numbers(sample_frames(data, count=1_000_000_000).frames) == list(range(20))
    assert numbers(sample_frames(data, fps=1).frames) == [0, 10]
    assert numbers(sample_frames(data, fps=4).frames) == [0, 2, 5, 7, 10, 12, 15, 17]
    assert (
        numbers(sample_frames(data, fps=10).frames) == numbers(sample_frames(data, fps=1e9).frames) == list(range(20))
    )
    assert numbers(sample_frames(data, fps=0.001).frames) == [0]


@pytest.mark.parametrize(("quarters", "corner"), [(1, "tr"), (2, "br"), (3, "bl")])
def test_a_video_of_a_phone_is_upright(quarters: int, corner: str) -> None:
    sampled = sample_frames(turned(video(frames()), quarters), count=2).frames
    assert sampled.shape[1:3] == ((64, 48) if quarters % 2 else (48, 64))
    assert {black_corner(f) for f in sampled} == {corner}


@pytest.mark.parametrize("asked", [{}, {"count": -1}, {"fps": -1.0}, {"count": 1, "fps": -1.0}])
def test_how_many_must_be_said(asked: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="give count, fps or both"):
        sample_frames(video(frames(3)), **asked)


def test_times_are_those_of_the_frames() -> None:
    data = video(frames())
    assert sample_frames(data, fps=4).times == [0.0, 0.2, 0.5, 0.7, 1.0, 1.2, 1.5, 1.7]
    assert sample_frames(data, count=4).times == [0.2, 0.7, 1.2, 1.7]


def test_of_count_and_fps_the_one_that_gives_fewer() -> None:
    data = video(frames())
    assert numbers(sample_frames(data, count=4, fps=1).frames) == [0, 10]
    assert numbers(sample_frames(data, count=8, fps=4).frames) == [0, 2, 5, 7, 10, 12, 15, 17]
    assert numbers(sample_frames(data, count=4, fps=4).frames) == [2, 7, 12, 17]


@pytest.mark.parametrize(
    ("side", "quarters", "shape"), [(0, 0, (48, 64)), (64, 0, (48, 64)), (32, 0, (24, 32)), (32, 1, (32, 24))]
)
def test_frames_are_no_longer_than_asked_for(side: int, quarters: int, shape: tuple[int, int]) -> None:
    data = turned(video(frames()), quarters) if quarters else video(frames())
    sampled = sample_frames(data, count=2, side=side).frames
    assert sampled.shape == (2, *shape, 3)
    assert [round(float(f[-4:, -4:].mean()) / 10) for f in sampled] == [5, 15]


@pytest.mark.parametrize(
    ("limit", "value", "code"),
    [("MAX_SECONDS", 1.5, "too_long"), ("MAX_PIXELS", 3_000, "too_large"), ("MAX_BYTES", 20_000, "too_large")],
)
def test_limits_hold_before_decoding(monkeypatch: pytest.MonkeyPatch, limit: str, value: float, code: str) -> None:
    data = video(frames())
    monkeypatch.setattr(module, limit, value)
    monkeypatch.setattr(module, "_decoded", None)
    with pytest.raises(EngineError) as caught:
        sample_frames(data, count=4)
    assert (caught.value.engine_code, caught.value.transient) == (code, False)


BROKEN: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "text": lambda: b"I am no video\n" * 9,
    "playlist": lambda: b"#EXTM3U\n#EXTINF:1,\nfile:///etc/hostname\n",
    "picture": lambda: b"\x89PNG\r\n\x1a\n" + bytes(99),
    "sound": lambda: encoded_sound(tone(440, 44_100), 44_100, "mp4", "aac"),
    "mp4 cut": lambda: video(frames())[:-200],
    "mp4 of zeros": lambda: video(frames())[:40] + bytes(5_000),
    "webm cut in its header": lambda: video(frames(), container="webm", codec="libvpx")[:200],
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_video_is_told_so(name: str) -> None:
    with pytest.raises(EngineError) as caught:
        sample_frames(BROKEN[name](), count=2)
    assert (caught.value.engine_code, caught.value.transient) == ("bad_video", False)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_is_changed_in_a_file_it_is_frames_or_a_typed_error(data: Any) -> None:
    file = bytearray(data.draw(st.sampled_from(FILES)))
    for _ in range(data.draw(st.integers(1, 4))):
        file[data.draw(st.integers(0, len(file) - 1))] = data.draw(st.integers(0, 255))
    assert seen(bytes(file)) in ("frames", "bad_video", "too_large", "too_long")


FILES: list[bytes] = []


@pytest.fixture(autouse=True, scope="module")
def _files() -> None:
    FILES[:] = [video(frames(5)), video(frames(5), container="webm", codec="libvpx")]


def seen(data: bytes) -> str:
    """ "frames", or the code of the error."""
    try:
        sampled = sample_frames(data, count=2).frames
    except EngineError as error:
        return error.engine_code
    return "frames" if sampled.ndim == 4 and sampled.dtype == np.uint8 else "something else"
