"""Bytes in JSON are base64, which only the response's model can tell from text."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel

from cornstalk.types import bare, field_type


def from_base64(hint: Any, value: Any) -> Any:
    """A JSON value with each string decoded for which a type says bytes. What does not fit the type stays as it is."""
    hint, _ = bare(hint)
    origin, args = get_origin(hint), get_args(hint)
    if hint is bytes and isinstance(value, str):
        return base64.b64decode(value)
    if origin in (Union, UnionType):
        fits = [a for a in args if a is not type(None)]
        return from_base64(fits[0], value) if len(fits) == 1 and value is not None else value
    if isinstance(value, Mapping):
        return {k: from_base64(member(hint, k), v) for k, v in value.items()}
    if isinstance(value, list):
        return [from_base64(member(hint, str(i)), v) for i, v in enumerate(value)]
    return value


def type_at(hint: Any, path: str) -> Any:
    """The type of a field by its path ("parts.0.text"), without marks; None if the type does not tell."""
    for name in path.split("."):
        hint = member(hint, name)
    return bare(hint)[0]


def member(hint: Any, name: str) -> Any:
    """The type of a model's field, a list's element or a dict's value, through Optional; None if it is not told."""
    hint, _ = bare(hint)
    if get_origin(hint) in (Union, UnionType):
        fits = [a for a in get_args(hint) if a is not type(None)]
        return member(fits[0], name) if len(fits) == 1 else None
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        field = hint.model_fields.get(name)
        return field_type(field) if field is not None else None
    origin, args = get_origin(hint), get_args(hint)
    if origin is tuple and args[-1:] != (...,):
        return args[int(name)] if name.isdigit() and int(name) < len(args) else None
    if origin in (list, tuple):
        return args[0]
    return args[1] if origin is dict else None
