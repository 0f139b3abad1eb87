"""Which tracks a container holds, from its headers alone: a walk over sizes, however long the file is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_ELEMENTS: Final = 100_000
"""Boxes or elements that are looked at before a file counts as unknown."""

_HEADER, _DOCTYPE = 0x1A45DFA3, 0x4282
_SEGMENT, _TRACKS, _CLUSTER, _TRACK, _TRACK_TYPE = 0x18538067, 0x1654AE6B, 0x1F43B675, 0xAE, 0x83
_PICTURES: Final = 1

Span = tuple[int, int]
"""Where a box's content begins and ends."""


def mp4_has_pictures(data: bytes) -> bool | None:
    """Whether an MP4 or MOV has a picture track; None when its list of tracks is not there."""
    kinds: set[bytes] = set()
    for moov in _boxes(data, (0, len(data)), b"moov"):
        for track in _boxes(data, moov, b"trak"):
            for media in _boxes(data, track, b"mdia"):
                for begin, _ in _boxes(data, media, b"hdlr"):
                    kinds.add(data[begin + 8 : begin + 12])
    return b"vide" in kinds if kinds & {b"vide", b"soun"} else None


def _boxes(data: bytes, within: Span, name: bytes) -> Iterator[Span]:
    at, end = within
    for _ in range(_ELEMENTS):
        if at + 8 > end:
            return
        size, head = int.from_bytes(data[at : at + 4], "big"), 8
        if size == 1:
            size, head = int.from_bytes(data[at + 8 : at + 16], "big"), 16
        stop = end if size == 0 else min(at + size, end)  # 0: to the end of the file
        if 0 < size < head:
            return
        if data[at + 4 : at + 8] == name:
            yield at + head, stop
        at = stop


def ebml_doctype(data: bytes) -> bytes:
    """ "webm" or "matroska"."""
    for header in _elements(data, (0, len(data)), _HEADER):
        for begin, end in _elements(data, header, _DOCTYPE):
            return data[begin:end].rstrip(b"\0")
    return b""


def ebml_has_pictures(data: bytes) -> bool | None:
    """Whether a WebM or Matroska file has a picture track; None when its list of tracks is not there."""
    kinds: set[int] = set()
    for segment in _elements(data, (0, len(data)), _SEGMENT):
        for tracks in _elements(data, segment, _TRACKS):
            for track in _elements(data, tracks, _TRACK):
                kinds |= {int.from_bytes(data[b:e], "big") for b, e in _elements(data, track, _TRACK_TYPE)}
            return _PICTURES in kinds if kinds else None
    return None


def _elements(data: bytes, within: Span, wanted: int) -> Iterator[Span]:
    at, end = within
    for _ in range(_ELEMENTS):
        if at >= end or not data[at]:
            return
        width = 9 - data[at].bit_length()
        name = int.from_bytes(data[at : at + width], "big")
        at += width
        if at >= end or not data[at] or name == _CLUSTER:  # what follows clusters tells no more of tracks
            return
        width = 9 - data[at].bit_length()
        mask = (1 << 7 * width) - 1
        size = int.from_bytes(data[at : at + width], "big") & mask
        at += width
        stop = end if size == mask else min(at + size, end)  # all ones: of unknown size, as live recorders write
        if name == wanted:
            yield at, stop
        at = stop
