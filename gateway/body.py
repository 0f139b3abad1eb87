"""Request bodies, strictly read: what is cut off, doubled or not what it says it is is refused, never guessed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from cornstalk.errors import BadInput, TooLarge, UnsupportedMedia

DEPTH: Final = 64
"""Levels to which JSON may be nested."""
PARTS: Final = 128
"""Parts of one form."""
NAME_LIMIT: Final = 1024
"""Bytes of one header of a part."""


@dataclass(frozen=True, slots=True)
class Json:
    """A part that says it is JSON, which is what a form has for all that is neither text nor a file."""

    value: Any


Form = dict[str, list[str | bytes | Json]]
"""Parts by name, in order: text, the bytes of a file, or JSON."""


class MalformedBody(BadInput):
    """Raised when a body cannot be read at all."""

    code = "malformed_body"
    status = 400


def media_type(request: Request) -> str:
    """The declared type of the body, without parameters; JSON if none is declared."""
    return request.headers.get("content-type", "application/json").split(";")[0].strip().lower()


async def read_json(request: Request) -> Any:
    """The value of a JSON body. Raises MalformedBody."""
    try:
        return parse_json(await request.body())
    except ValueError as error:
        raise MalformedBody(f"expected JSON: {error}") from error


def parse_json(data: bytes | str) -> Any:
    """Raises ValueError that says what is wrong and where."""
    try:
        value = msgspec.json.decode(data)
    except RecursionError:
        raise ValueError(f"nested deeper than {DEPTH} levels") from None
    brackets = data.count(b"[") + data.count(b"{") if isinstance(data, bytes) else data.count("[") + data.count("{")
    if brackets > DEPTH and _deeper(value, DEPTH):
        raise ValueError(f"nested deeper than {DEPTH} levels")
    return value


def _deeper(value: Any, levels: int) -> bool:
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list):
        return False
    return levels == 0 or any(_deeper(member, levels - 1) for member in value)


async def read_form(request: Request, text_limit: int, file_limit: int) -> Form:
    """The parts of a multipart/form-data body, each bounded while it arrives.

    Raises MalformedBody, TooLarge (names the field), UnsupportedMedia (a charset other than UTF-8).
    """
    _, parameters = parse_options_header(request.headers["content-type"])
    charset = parameters.get(b"charset", b"utf-8").decode("latin-1").lower()
    if charset not in ("utf-8", "utf8", "us-ascii"):
        raise UnsupportedMedia(f"expected a form in UTF-8, got charset {charset[:40]!r}", "Content-Type")
    if not parameters.get(b"boundary"):
        raise MalformedBody("the multipart body is broken: expected a boundary parameter in Content-Type, got none")
    reader = _FormReader(text_limit, file_limit)
    try:
        parser = reader.parser(parameters[b"boundary"])
        async for piece in request.stream():
            parser.write(piece)
        parser.finalize()
    except FormParserError as error:
        raise MalformedBody(f"the multipart body is broken: {error}") from error
    if not reader.ended:
        raise MalformedBody("the multipart body is broken: expected its last boundary, got the end of the body")
    return reader.form


class _FormReader:
    """Collects parts. One that is cut off never gets into `form`."""

    def __init__(self, text_limit: int, file_limit: int) -> None:
        self._limits = {False: text_limit, True: file_limit}
        self.form: Form = {}
        self.ended = False
        self._count = 0
        self._header = bytearray()
        self._value = bytearray()
        self._begin()

    def parser(self, boundary: bytes) -> MultipartParser:
        """Raises FormParserError."""
        return MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": lambda data, start, end: self._gather(self._header, data, start, end),
                "on_header_value": lambda data, start, end: self._gather(self._value, data, start, end),
                "on_header_end": self._header_end,
                "on_headers_finished": self._headers_end,
                "on_part_data": self._data,
                "on_part_end": self._part_end,
                "on_end": self._end,
            },
        )

    def _begin(self) -> None:
        self._disposition = self._type = b""
        self._name = ""
        self._is_file = False
        self._content = bytearray()

    def _gather(self, into: bytearray, data: bytes, start: int, end: int) -> None:
        into += data[start:end]
        if len(into) > NAME_LIMIT:
            raise MalformedBody(f"the multipart body is broken: a header of a part is over {NAME_LIMIT} bytes")

    def _header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = bytes(self._value)
        elif self._header.lower() == b"content-type":
            self._type = bytes(self._value)
        self._header.clear()
        self._value.clear()

    def _headers_end(self) -> None:
        _, options = parse_options_header(self._disposition)
        if b"name" not in options:
            raise MalformedBody("the multipart body is broken: a part without Content-Disposition and a name")
        self._name = _utf8(options[b"name"], "the name of a part")
        self._is_file = b"filename" in options
        self._count += 1
        if self._count > PARTS:
            raise MalformedBody(f"a form has at most {PARTS} parts")

    def _data(self, data: bytes, start: int, end: int) -> None:
        self._content += data[start:end]
        limit = self._limits[self._is_file]
        if len(self._content) > limit:
            raise TooLarge(f"expected at most {limit} bytes in one part, got more", self._name[:100])

    def _part_end(self) -> None:
        self.form.setdefault(self._name, []).append(self._part())
        self._content = bytearray()

    def _part(self) -> str | bytes | Json:
        if self._is_file:
            return bytes(self._content)
        text = _utf8(bytes(self._content), self._name[:100])
        if parse_options_header(self._type)[0].lower() != b"application/json":
            return text
        try:
            return Json(parse_json(text))
        except ValueError as error:
            raise MalformedBody(f"{self._name[:100]}: expected JSON, as the part says: {error}") from error

    def _end(self) -> None:
        self.ended = True


def _utf8(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise MalformedBody(f"{what}: expected UTF-8, got other bytes at {error.start}") from error
