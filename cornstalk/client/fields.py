"""From values to the body of a request: JSON, or a form when there are files to send."""

from __future__ import annotations

import base64
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from cornstalk.errors import BadInput

File = bytes | bytearray | memoryview | os.PathLike[str] | BinaryIO
"""What is sent as a file: bytes, the path of a file, or one that is open in binary mode."""

Request = BaseModel | Mapping[str, Any]


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


def has_files(fields: Mapping[str, Any]) -> bool:
    return any(_is_file(v) or _are_files(v) for v in fields.values())


def body_of(fields: Mapping[str, Any]) -> Body:
    """Reads the files among the fields. Raises BadInput for what JSON cannot hold; TypeError, OSError for a file.

    A form is smaller than JSON with base64 in it, but it cannot say everything; JSON is sent where it would be misread.
    """
    files = {n: v for n, v in fields.items() if _is_file(v) or _are_files(v)}
    plain = {n: _plain(n, v) for n, v in fields.items() if n not in files}
    form = files or any(isinstance(v, Typed) for v in fields.values())
    if form and all(isinstance(fields[n], Typed) or _same_in_a_form(v) for n, v in plain.items()):
        return _form(plain, files)
    urls = {n: [_data_url(f) for f in v] if _are_files(v) else _data_url(v) for n, v in files.items()}
    return Body(to_json({**plain, **urls}), "application/json")


def _is_file(value: Any) -> bool:
    return isinstance(value, (bytes, bytearray, memoryview, os.PathLike)) or hasattr(value, "read")


def _are_files(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(_is_file(v) for v in value)


def _plain(name: str, value: Any) -> Any:
    try:
        return to_jsonable_python(value, inf_nan_mode="constants")
    except PydanticSerializationError as error:
        raise BadInput(f"expected what JSON can hold: {error}", name) from error


def _same_in_a_form(value: Any) -> bool:
    """A part of a form is text, read as JSON where the field is no string: neither may change what it means."""
    if isinstance(value, str):
        return not _is_json(value)
    return value is not None and value != []


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _content(file: Any) -> bytes:
    if isinstance(file, os.PathLike):
        return Path(file).read_bytes()
    data = file.read() if hasattr(file, "read") else file
    if isinstance(data, str):
        raise TypeError("expected a file in binary mode, got one in text mode")
    return bytes(data)


def _data_url(file: Any) -> str:
    return f"data:application/octet-stream;base64,{base64.b64encode(_content(file)).decode()}"


def _form(plain: Mapping[str, Any], files: Mapping[str, Any]) -> Body:
    boundary = secrets.token_hex(16)
    content = bytearray()
    for head, data in _parts(plain, files):
        content += f"--{boundary}\r\nContent-Disposition: form-data; {head}\r\n\r\n".encode()
        content += data
        content += b"\r\n"
    content += f"--{boundary}--\r\n".encode()
    return Body(bytes(content), f"multipart/form-data; boundary={boundary}")


def _parts(plain: Mapping[str, Any], files: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    for name, value in plain.items():
        yield _named(name), value.encode() if isinstance(value, str) else to_json(value)
    for name, value in files.items():
        for file in value if _are_files(value) else [value]:
            head = f'{_named(name)}; filename="file"\r\nContent-Type: application/octet-stream'
            yield head, _content(file)


def _named(name: str) -> str:
    escaped = name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
    return f'name="{escaped}"'
