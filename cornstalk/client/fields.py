"""From values to the body of a request: JSON, or a form when there are files to send."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python
from typing_extensions import TypeVar

from cornstalk.client.typed import type_at
from cornstalk.errors import BadInput, TooLarge
from cornstalk.extensions import Upload
from cornstalk.uploads import LIMIT

File = bytes | bytearray | memoryview | os.PathLike[str] | BinaryIO
"""What is sent as a file: bytes, the path of a file, or one that is open in binary mode."""

Request = BaseModel | Mapping[str, Any]
Q = TypeVar("Q", bound=Request, default=dict[str, Any])
"""Request of an app: its model, or a dict when none was named."""


class Typed(str):
    """A value as a person typed it: the gateway reads it as JSON where the field is no string."""

    __slots__ = ()


class Body(NamedTuple):
    """Kept whole, so that sending it again sends the same."""

    content: bytes
    media_type: str


def merged(request: Request | None, more: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a request, by name; those in `more` win."""
    if isinstance(request, BaseModel):
        request = {name: getattr(request, name) for name in type(request).model_fields}
    return {**(request or {}), **more}


def live_fields(fields: Mapping[str, Any]) -> dict[str, AsyncIterable[Any]]:
    """The fields whose values arrive piece by piece."""
    return {name: value for name, value in fields.items() if isinstance(value, AsyncIterable)}


def bytes_of(request: Request | None) -> dict[str, bytes]:
    """The fields of a model whose declared type is bytes, so that their values are no files."""
    if not isinstance(request, BaseModel):
        return {}
    values = {name: getattr(request, name) for name in type(request).model_fields}
    return {n: v for n, v in values.items() if isinstance(v, bytes) and type_at(type(request), n) is bytes}


def has_files(fields: Mapping[str, Any]) -> bool:
    return any(_is_file(v) or _are_files(v) for v in fields.values())


def with_files(fields: Mapping[str, Any], change: Callable[[str, Any], Any]) -> dict[str, Any]:
    """A copy with `change(field, file)` for each file."""

    def changed(name: str, value: Any) -> Any:
        if _is_file(value):
            return change(name, value)
        return [changed(name, f) for f in value] if _are_files(value) else value

    return {name: changed(name, value) for name, value in fields.items()}


def files(fields: Mapping[str, Any]) -> list[Any]:
    """Every file, in order."""
    found: list[Any] = []
    with_files(fields, lambda _, file: found.append(file))
    return found


def content(name: str, file: File) -> bytes:
    """The bytes of a file for the field of this name. Raises TooLarge; TypeError for one in text mode; OSError."""
    data: Any = file
    if isinstance(file, os.PathLike):
        with Path(file).open("rb") as opened:
            data = opened.read(LIMIT + 1)
    elif not isinstance(file, (bytes, bytearray, memoryview)):
        data = file.read(LIMIT + 1)
    if isinstance(data, str):
        raise TypeError("expected a file in binary mode, got one in text mode")
    found = bytes(data)
    if len(found) > LIMIT:
        raise TooLarge(f"expected at most {LIMIT} bytes in a file, got more", name)
    return found


def body_of(fields: Mapping[str, Any]) -> Body:
    """A form if there are files, which it carries as they are; else JSON.

    Raises what `content` and `jsonable` raise.
    """
    if not has_files(fields) and not any(isinstance(v, Typed) for v in fields.values()):
        return Body(_encoded(jsonable(fields)), "application/json")
    boundary = secrets.token_hex(16)
    body = bytearray()
    for head, data in _parts(fields):
        body += f"--{boundary}\r\nContent-Disposition: form-data; {head}\r\n\r\n".encode()
        body += data
        body += b"\r\n"
    body += f"--{boundary}--\r\n".encode()
    return Body(bytes(body), f"multipart/form-data; boundary={boundary}")


def jsonable(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that are no files, as JSON has them. Raises BadInput that names the field which JSON cannot hold."""
    return {name: _jsonable(name, value) for name, value in fields.items()}


def _jsonable(name: str, value: Any) -> Any:
    if isinstance(value, Upload):
        return {"upload": value.digest}
    if isinstance(value, (list, tuple)) and any(isinstance(v, Upload) for v in value):
        return [_jsonable(name, v) for v in value]
    try:
        return to_jsonable_python(value, inf_nan_mode="constants")
    except PydanticSerializationError as error:
        raise BadInput(f"expected what JSON can hold: {error}", name) from error


def _encoded(value: Any) -> bytes:
    """Floats that are no number by the names that a gateway has for them."""
    return to_json(value, inf_nan_mode="strings")


def _is_file(value: Any) -> bool:
    return isinstance(value, (bytes, bytearray, memoryview, os.PathLike)) or hasattr(value, "read")


def _are_files(value: Any) -> bool:
    """A list with a file in it is a list of uploads; some of them may have been sent before."""
    return (
        isinstance(value, (list, tuple))
        and all(isinstance(v, Upload) or _is_file(v) for v in value)
        and any(_is_file(v) for v in value)
    )


def _parts(fields: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Head and content of each part; what is neither a file nor typed by a person says that it is JSON."""
    for name, value in fields.items():
        for member in value if _are_files(value) else [value]:
            if _is_file(member):
                yield (
                    f'{_named(name)}; filename="file"\r\nContent-Type: application/octet-stream',
                    content(name, member),
                )
            elif isinstance(member, Typed):
                yield _named(name), member.encode()
            else:
                yield f"{_named(name)}\r\nContent-Type: application/json", _encoded(_jsonable(name, member))


def _named(name: str) -> str:
    escaped = name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
    return f'name="{escaped}"'
