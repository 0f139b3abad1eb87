"""Bytes in JSON are base64, which only the response's model can tell from text."""

from __future__ import annotations

import base64
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel

from cornstalk.types import bare, field_type


def from_base64(hint: Any, value: Any) -> Any:
    """A JSON value with each string decoded for which a type says bytes. What does not fit the type stays as it is."""
    if isinstance(value, str) and plain(hint) is bytes:
        return base64.b64decode(value)
    if isinstance(value, dict):
        return {k: from_base64(_member(hint, k), v) for k, v in value.items()}
    if isinstance(value, list):
        return [from_base64(_member(hint, str(i)), v) for i, v in enumerate(value)]
    return value


def type_at(hint: Any, path: str) -> Any:
    """The type of a field by its path ("parts.0.text"); None if the type does not tell."""
    for name in path.split("."):
        hint = _member(hint, name)
    return plain(hint)


def plain(hint: Any) -> Any:
    """A type without marks and without None; None for a union of several."""
    base, _ = bare(hint)
    if get_origin(base) not in (Union, UnionType):
        return base
    members = [a for a in get_args(base) if a is not type(None)]
    return plain(members[0]) if len(members) == 1 else None


def _member(hint: Any, name: str) -> Any:
    """The type of a model's field, a list's element or a dict's value; None if it is not told."""
    kind = plain(hint)
    origin, args = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        field = kind.model_fields.get(name)
        return field_type(field) if field is not None else None
    if origin is tuple and args[-1:] != (...,):
        return args[int(name)] if name.isdigit() and int(name) < len(args) else None
    if origin in (list, tuple) and args:
        return args[0]
    return args[1] if origin is dict else None
