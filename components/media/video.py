"""Bytes of a video -> some of its frames."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from math import ceil
from typing import Any, Final, NamedTuple

import numpy as np

from components.media.demux import first_of, opened
from cornstalk.errors import EngineError

MAX_SECONDS: Final = 600.0
MAX_PIXELS: Final = 16_000_000
"""Of one frame."""
MAX_BYTES: Final = 512 << 20
"""Of all frames that are handed out."""

Frames = np.ndarray[Any, np.dtype[np.uint8]]
Choose = Callable[[int, float], Sequence[int]]
"""Which frames: of how many, and how many of them are shown in a second -> their numbers, rising, from 0."""


class _Index:
    """When each frame is shown and which can be decoded first, in units of the stream; read without decoding."""

    def __init__(self, container: Any, stream: Any) -> None:
        packets: list[tuple[int, bool, int]] = [
            (p.pts, p.is_keyframe, p.duration or 0) for p in container.demux(stream) if p.pts is not None
        ]
        if not packets:
            raise EngineError("the video has no frames", "bad_video")
        self.shown: list[int] = sorted(pts for pts, _, _ in packets)
        self.keys = sorted(pts for pts, key, _ in packets if key) or self.shown[:1]
        self.end = max(pts + duration for pts, _, duration in packets)
        self.unit = stream.time_base  # a Fraction of a second
        self.base = float(self.unit)

    @property
    def seconds(self) -> float:
        return (self.end - self.shown[0]) * self.base

    def at(self, when: float) -> int:
        """The frame that is on screen `when` seconds after the first."""
        return self.shown[max(0, bisect_right(self.shown, self.shown[0] + when / self.base + 1e-6) - 1)]

    def each(self, step: float) -> list[int]:
        """The frames that are on screen at 0, `step`, 2 `step`, ... seconds after the first."""
        begins = [(pts - self.shown[0]) * self.base for pts in self.shown]
        ends = [*begins[1:], self.seconds]
        return [
            pts
            for pts, begin, end in zip(self.shown, begins, ends, strict=True)
            if begin == 0 or ceil(begin / step - 1e-6) * step < end - 1e-6
        ]

    def key_before(self, pts: int) -> int:
        return self.keys[max(0, bisect_right(self.keys, pts) - 1)]


class Sampled(NamedTuple):
    """Frames uint8 [n, h, w, 3], RGB, upright as the file says, and the seconds from the first of the video to each."""

    frames: Frames
    times: list[float]
    seconds: float
    """Of the whole video."""


def sample_frames(data: bytes, *, count: int = 0, fps: float = 0.0, side: int = 0) -> Sampled:
    """`count` frames, each in the middle of an equal part of the whole time, or `fps` of each second from its first
    frame on; of both that which gives fewer. No frame is given twice. With `side` none is longer or wider than that.
    Times are rounded to 1 ms.

    Raises EngineError: too_long over MAX_SECONDS, too_large over MAX_PIXELS or MAX_BYTES, both told before decoding;
    bad_video for what is no video, or breaks off. ValueError unless `count` or `fps` is given.
    """
    if count < 0 or fps < 0 or count == fps == 0:
        raise ValueError("give count, fps or both")
    found = _sampled(data, lambda index: _wanted(index, count, fps), side)
    return found._replace(times=[round(time, 3) for time in found.times])


def choose_frames(data: bytes, choose: Choose, side: int = 0) -> Sampled:
    """The frames that `choose` names, else as `sample_frames`."""

    def wanted(index: _Index) -> list[int]:
        total = len(index.shown)
        return [index.shown[number] for number in choose(total, total / index.seconds if index.seconds else 1.0)]

    return _sampled(data, wanted, side)


def _sampled(data: bytes, wants: Callable[[_Index], list[int]], side: int) -> Sampled:
    with opened(data, "video") as container:
        stream = first_of(container.streams.video, "video")
        index = _Index(container, stream)
        if index.seconds > MAX_SECONDS:
            raise EngineError(f"the video lasts {index.seconds:.1f} s; the limit is {MAX_SECONDS:g} s", "too_long")
        wanted = wants(index)
        size = _size(stream.width, stream.height, side)
        _check_size(stream.width, stream.height, size, len(wanted))
        frames = np.stack(list(_decoded(container, stream, index, wanted, size)))
        times = [float((pts - index.shown[0]) * index.unit) for pts in wanted]
        return Sampled(frames, times, index.seconds)


def _wanted(index: _Index, count: int, fps: float) -> list[int]:
    if fps:
        each = index.each(1 / fps)
        if not count or len(each) <= count:
            return each
    count = min(count, len(index.shown))
    times = [(i + 0.5) * index.seconds / count for i in range(count)]
    return list(dict.fromkeys(index.at(when) for when in times))


def _size(width: int, height: int, side: int) -> tuple[int, int]:
    """In which it is handed out; the shape is kept."""
    longest = max(width, height)
    if not side or longest <= side:
        return width, height
    return max(1, width * side // longest), max(1, height * side // longest)


def _check_size(width: int, height: int, given: tuple[int, int], frames: int) -> None:
    if width * height > MAX_PIXELS:
        raise EngineError(f"the video has {width} x {height} pixels; {MAX_PIXELS} can be read", "too_large")
    if (size := given[0] * given[1] * 3 * frames) > MAX_BYTES:
        raise EngineError(f"{frames} frames of {given[0]} x {given[1]} are {size} bytes of {MAX_BYTES}", "too_large")


def _decoded(
    container: Any, stream: Any, index: _Index, wanted: Sequence[int], size: tuple[int, int]
) -> Iterator[Frames]:
    """Goes to the key frame before each wanted one, unless it is on the way there already."""
    at: int | None = None
    frames: Iterator[Any] = iter(())
    for pts in wanted:
        key = index.key_before(pts)
        if at is None or key > at:
            container.seek(key, stream=stream)
            frames = container.decode(stream)
        frame = next((f for f in frames if f.pts is not None and f.pts >= pts), None)
        if frame is None:
            raise EngineError(f"the video breaks off before {(pts - index.shown[0]) * index.base:.2f} s", "bad_video")
        at = frame.pts
        pixels = frame.reformat(width=size[0], height=size[1], format="rgb24").to_ndarray()
        yield np.rot90(pixels, frame.rotation // 90)
