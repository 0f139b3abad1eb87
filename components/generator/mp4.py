"""A video as clients get it: H.264 in a fragmented MP4, which plays while it arrives and can be gone on with."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

GROUP: Final = 16
"""Frames in a fragment. Each begins with a whole frame, so that it needs no other one."""
_QUALITY: Final = "18"
_OPTIONS: Final = {"movflags": "empty_moov+default_base_moof+frag_custom"}
_SEQUENCE: Final = 20  # where a fragment says which it is
_TIME: Final = 8  # behind the name of the box that says when it begins


class Mp4:
    """Takes frames as they come and gives the pieces of the file, but for those that are `stored`.

    A piece is a fragment, the first one with the head of the file. Frames of stored ones are not looked at again.
    """

    def __init__(self, rate: int, stored: bytes = b"") -> None:
        """`rate`: frames per second."""
        self._rate = rate
        self._told = sum(kind == b"moof" for kind, _ in _boxes(stored))
        self._frames: list[Any] = []
        self._done = 0  # fragments

    def add(self, frames: np.ndarray[Any, Any]) -> list[bytes]:
        """uint8 [n, height, width, 3] -> the pieces that are complete with them."""
        self._frames += list(frames)
        pieces = []
        while len(self._frames) >= GROUP:
            pieces += self._next(self._frames[:GROUP])
            del self._frames[:GROUP]
        return pieces

    def end(self) -> list[bytes]:
        """The piece with the last frames, if there are any left."""
        return self._next(self._frames) if self._frames else []

    def _next(self, frames: list[Any]) -> list[bytes]:
        self._done += 1
        return [self._fragment(frames)] if self._done > self._told else []

    def _fragment(self, frames: list[Any]) -> bytes:
        """A file of these frames alone, of which the fragment is moved to its place in the whole."""
        file, ticks = _encoded(frames, self._rate)
        wanted = {b"moof", b"mdat"} | ({b"ftyp", b"moov"} if self._done == 1 else set())
        piece = b""
        for kind, box in _boxes(file):
            if kind == b"moof":
                moved = bytearray(box)
                struct.pack_into(">I", moved, _SEQUENCE, self._done)
                struct.pack_into(">Q", moved, moved.index(b"tfdt") + _TIME, (self._done - 1) * GROUP * ticks)
                box = bytes(moved)
            piece += box if kind in wanted else b""
        return piece


def _encoded(frames: list[Any], rate: int) -> tuple[bytes, int]:
    """An MP4 of one fragment, and how many of its units of time a frame lasts. One thread: the same frames, the same
    bytes.
    """
    import av

    file = io.BytesIO()
    with av.open(file, "w", format="mp4", options=_OPTIONS) as container:
        stream: Any = container.add_stream(
            "libx264", rate=rate, options={"crf": _QUALITY, "bf": "0", "sc_threshold": "0"}
        )
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt, stream.gop_size, stream.codec_context.thread_count = "yuv420p", GROUP, 1
        for index, pixels in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(pixels, "rgb24")
            frame.pts = index
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
        ticks = round(1 / (stream.time_base * rate))
    return file.getvalue(), ticks


def _boxes(file: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 0
    while at < len(file):
        length, kind = struct.unpack_from(">I4s", file, at)
        yield kind, file[at : at + length]
        at += length
