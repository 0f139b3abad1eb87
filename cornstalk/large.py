"""Large values travel beside messages: content-addressed in the upload spool, named by an `Upload` (design rule 11).

A value is marked by its content alone, so that a pass that is run again, on any gateway, makes the same mark.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

from cornstalk.messages import Extension, Upload, substitute

LARGE: Final = 64 * 1024
"""Bytes from which a str or bytes value leaves its message."""
TEXT: Final = "application/x-cornstalk-text"
BYTES: Final = "application/x-cornstalk-bytes"


def mark_of(value: str | bytes) -> tuple[Upload, bytes]:
    """What stands for a large value, and the bytes to spool under it."""
    data = value.encode() if isinstance(value, str) else value
    digest = hashlib.blake2b(data, digest_size=32).hexdigest()
    return Upload(digest, len(data), TEXT if isinstance(value, str) else BYTES), data


def is_mark(value: object) -> bool:
    """Whether this upload stands for a large value, rather than for a file that a client sent."""
    return isinstance(value, Upload) and value.media_type in (TEXT, BYTES)


def value_of(mark: Upload, data: bytes) -> str | bytes:
    """The value again."""
    return data.decode() if mark.media_type == TEXT else data


def without_large(value: Any, spool: dict[Upload, bytes]) -> Any:
    """A copy of a msgpack value with marks for its large parts, whose bytes are added to `spool`."""
    if isinstance(value, (str, bytes)):
        if len(value) < LARGE:
            return value
        mark, data = mark_of(value)
        spool[mark] = data
        return mark
    if isinstance(value, dict):
        return {k: without_large(v, spool) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_large(v, spool) for v in value]
    return value


def with_large(value: Any, known: dict[Upload, bytes]) -> Any:
    """The reverse, given the bytes of every mark in it."""

    def change(extension: Extension) -> Any:
        return (
            value_of(extension, known[extension]) if isinstance(extension, Upload) and is_mark(extension) else extension
        )

    return substitute(value, change)
