"""Containers for FFmpeg: which demuxer reads which media type.

It is never left to guess: some of its demuxers follow links to files and addresses that stand in the data.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from cornstalk.errors import EngineError
from cornstalk.media import NAMES, sniff

DEMUXERS: Final = {
    "audio/wav": "wav",
    "audio/flac": "flac",
    "audio/mpeg": "mp3",
    "audio/ogg": "ogg",
    "audio/mp4": "mov",
    "audio/aac": "aac",
    "audio/aiff": "aiff",
    "audio/webm": "matroska",
    "audio/x-matroska": "matroska",
    "audio/x-caf": "caf",
    "audio/amr": "amr",
    "video/mp4": "mov",
    "video/quicktime": "mov",
    "video/3gpp": "mov",
    "video/webm": "matroska",
    "video/x-matroska": "matroska",
    "video/ogg": "ogg",
    "video/x-msvideo": "avi",
}


@contextmanager
def opened(data: bytes, kind: str) -> Iterator[Any]:
    """An open av container. What FFmpeg raises in it becomes EngineError bad_audio or bad_video, after `kind`."""
    import av

    code = f"bad_{kind}"
    media_type = sniff(data) if data else "an empty file"
    if media_type not in DEMUXERS:
        raise EngineError(f"expected {kind}, got {media_type}; what can be read is {NAMES[kind]}", code)
    try:
        with av.open(io.BytesIO(data), format=DEMUXERS[media_type], metadata_errors="replace") as container:
            yield container
    except (av.FFmpegError, ValueError) as error:  # ValueError: the parameters change in the middle, or are none
        said = getattr(error, "strerror", None) or str(error)
        raise EngineError(f"the {kind} cannot be read: {said}", code) from error


def first_of(streams: Any, kind: str) -> Any:
    """The first stream of the kind. Raises EngineError when there is none, or none that can be decoded."""
    if not streams:
        raise EngineError(f"the file has no {kind} in it", f"bad_{kind}")
    if streams[0].codec_context is None:
        raise EngineError(f"the {kind} is in an encoding that cannot be read", f"bad_{kind}")
    return streams[0]
