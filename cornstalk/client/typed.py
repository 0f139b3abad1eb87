"""Bytes in JSON are base64, which only the response's model can tell from text."""

from __future__ import annotations

import base64
from typing import Any

from cornstalk.hints import hint_at, member, plain


def from_base64(hint: Any, value: Any) -> Any:
    """A JSON value with each string decoded for which a type says bytes. What does not fit the type stays as it is."""
    if isinstance(value, str) and plain(hint) is bytes:
        return base64.b64decode(value)
    if isinstance(value, dict):
        return {k: from_base64(member(hint, k), v) for k, v in value.items()}
    if isinstance(value, list):
        return [from_base64(member(hint, str(i)), v) for i, v in enumerate(value)]
    return value


def type_at(hint: Any, path: str) -> Any:
    """The type of a field by its path ("parts.0.text"); None if the type does not tell."""
    return plain(hint_at(hint, path))
