"""Large values travel beside messages: content-addressed in the upload spool, named by an `Upload` (design rule 11).

A value is marked by its content alone, so that a pass that is run again, on any gateway, makes the same mark.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from cornstalk.messages import Extension, Upload, decode_value, encode, extensions, substitute

LARGE: Final = 64 * 1024
"""Bytes from which a part of a value leaves its message."""
ROOM: Final = 128 * 1024
"""Bytes that the values of one node, End, input or response take in their message: more parts leave, until so."""
LEAST: Final = 1024
"""Bytes of the smallest part that leaves."""

TEXT: Final = "application/x-cornstalk-text"
BYTES: Final = "application/x-cornstalk-bytes"
VALUE: Final = "application/x-cornstalk-value"
"""A list or dict, as msgpack. It holds no references: what a dispatcher must see stays in the message."""

Spooled = dict[Upload, bytes]
"""What stands for large values, and the bytes to spool under it."""
Marked = dict[int, tuple[Any, Upload, bytes]]
"""Marks of strings by their id, with the string kept alive: what is sent twice is hashed once."""


def without_large(values: Mapping[str, Any], spool: Spooled, seen: Marked | None = None) -> dict[str, Any]:
    """Values with marks for their large parts, whose bytes are added to `spool`. The same for equal values."""
    if len(encode(values)) < LARGE:
        return dict(values)
    limit = 2 * LARGE
    while True:
        limit //= 2
        found: Spooled = {}
        small = {name: _small(value, limit, found, seen) for name, value in values.items()}
        if limit <= LEAST or len(encode(small)) <= ROOM:
            spool.update(found)
            return small


def _small(value: Any, limit: int, spool: Spooled, seen: Marked | None) -> Any:
    if isinstance(value, (str, bytes)):
        if len(value) * 4 < limit or len(encode(value)) < limit:
            return value
    elif not isinstance(value, (dict, list, tuple)):
        return value
    elif extensions(value):
        if isinstance(value, dict):
            return {k: _small(v, limit, spool, seen) for k, v in value.items()}
        return [_small(v, limit, spool, seen) for v in value]
    elif len(encode(value)) < limit:
        return value
    mark, data = _mark(value, seen)
    spool[mark] = data
    return mark


def _mark(value: Any, seen: Marked | None) -> tuple[Upload, bytes]:
    if seen is None or not isinstance(value, (str, bytes)):
        return mark_of(value)
    if id(value) not in seen:
        seen[id(value)] = (value, *mark_of(value))
    return seen[id(value)][1:]


def mark_of(value: Any) -> tuple[Upload, bytes]:
    """What stands for a value without references, and the bytes to spool under it."""
    match value:
        case str():
            data, kind = value.encode(), TEXT
        case bytes():
            data, kind = value, BYTES
        case _:
            data, kind = encode(value), VALUE
    return Upload(hashlib.blake2b(data, digest_size=32).hexdigest(), len(data), kind), data


def is_mark(value: object) -> bool:
    """Whether this stands for a large value, rather than for a file that a client sent."""
    return isinstance(value, Upload) and value.media_type in (TEXT, BYTES, VALUE)


def marks(value: Any) -> list[Upload]:
    """Every mark in a msgpack value."""
    return [e for e in extensions(value) if isinstance(e, Upload) and is_mark(e)]


def value_of(mark: Upload, data: bytes) -> Any:
    """The value again."""
    match mark.media_type:
        case "application/x-cornstalk-text":
            return data.decode()
        case "application/x-cornstalk-value":
            return decode_value(data)
    return data


def with_large(value: Any, known: Mapping[Upload, Any]) -> Any:
    """A value without marks, given what stands behind each one in it."""

    def change(extension: Extension) -> Any:
        return known[extension] if isinstance(extension, Upload) and is_mark(extension) else extension

    return substitute(value, change)
