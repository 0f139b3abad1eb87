"""The type of what stands at a place of a model. Pure."""

from __future__ import annotations

from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel

from cornstalk.types import bare, field_type


def hint_at(hint: Any, path: str) -> Any:
    """The type of a field by its path ("parts.0.text"), with its marks; None if it is not told."""
    for name in path.split("."):
        hint = member(hint, name)
    return hint


def plain(hint: Any) -> Any:
    """A type without marks and without None; None for a union of several."""
    base, _ = bare(hint)
    if get_origin(base) not in (Union, UnionType):
        return base
    members = [a for a in get_args(base) if a is not type(None)]
    return plain(members[0]) if len(members) == 1 else None


def member(hint: Any, name: str) -> Any:
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
