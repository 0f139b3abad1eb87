"""From an HTTP body to the input of a request: JSON or multipart, checked against the app's request model."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from pydantic import BaseModel, ValidationError
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request

from cornstalk.app import App
from cornstalk.errors import BadInput, TooLarge, UnsupportedMedia
from cornstalk.media import takes_upload, takes_uploads
from cornstalk.messages import encode
from cornstalk.values import no_reference, wire
from gateway.uploads import Uploads

INPUT_LIMIT: Final = 256 * 1024
"""Bytes of an input without its uploads, as msgpack."""
FILES: Final = 64
"""Files in one request."""


async def read_input(app: App, request: Request, uploads: Uploads, deadline: float) -> dict[str, Any]:
    """The validated input in msgpack form, its uploads spooled.

    Raises BadInput (422, or 400 for a body that is no JSON), TooLarge (413), UnsupportedMedia (415), naming the field.
    """
    kind = request.headers.get("content-type", "application/json").split(";")[0].strip().lower()
    if kind == "application/json":
        raw = _json(await request.body())
    elif kind == "multipart/form-data":
        raw = await _form(app.request_model, request)
    else:
        raise UnsupportedMedia(f"expected application/json or multipart/form-data, got {kind[:60]}", "Content-Type")
    model = app.request_model
    if not isinstance(raw, dict):
        raise BadInput(f"expected an object with {', '.join(model.model_fields)}, got {type(raw).__name__}")
    if unknown := raw.keys() - model.model_fields.keys():
        raise BadInput(f"no such field; {app.name} takes {', '.join(model.model_fields)}", sorted(unknown)[0])
    _check_plain(model, raw)
    for name, hint in _upload_fields(model).items():
        if raw.get(name) is not None:
            raw[name] = await _spooled(name, hint, raw[name], uploads, deadline)
    value: dict[str, Any] = wire(validated(model, raw), no_reference)
    if len(encode(value)) > INPUT_LIMIT:
        raise TooLarge(f"an input has at most {INPUT_LIMIT} bytes beside its uploads; send long data as an upload")
    return value


def validated(model: type[BaseModel], raw: dict[str, Any]) -> BaseModel:
    """The request model. Raises BadInput with the first thing that is wrong and where."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        raise BadInput(first["msg"], ".".join(map(str, first["loc"]))) from error


def _json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise MalformedBody(f"the body is not JSON: {error}") from error


class MalformedBody(BadInput):
    """Raised when a body cannot be read at all."""

    code = "malformed_body"
    status = 400


async def _form(model: type[BaseModel], request: Request) -> dict[str, Any]:
    try:
        form = await request.form(max_files=FILES, max_fields=FILES, max_part_size=INPUT_LIMIT)
    except HTTPException as error:
        raise MalformedBody(f"the multipart body is broken: {error.detail}") from error
    return {name: _part(model, form, name) for name in form}


def _part(model: type[BaseModel], form: FormData, name: str) -> Any:
    values = form.getlist(name)
    field = model.model_fields.get(name)
    if field is not None and takes_uploads(field.annotation):
        return values
    if len(values) > 1:
        raise BadInput(f"given {len(values)} times", name)
    value = values[0]
    if field is None or not isinstance(value, str) or field.annotation in (str, str | None):
        return value
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError:
        return value  # plain text in a form; the model says if it is not what the field takes


def _upload_fields(model: type[BaseModel]) -> dict[str, Any]:
    """Fields that hold an upload or a list of them, with their types including marks."""
    hints = model.__pydantic_fields__
    fields = {name: _marked(field) for name, field in hints.items()}
    return {name: hint for name, hint in fields.items() if takes_upload(hint) or takes_uploads(hint)}


def _marked(field: Any) -> Any:
    return Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation


def _check_plain(model: type[BaseModel], raw: dict[str, Any]) -> None:
    """What is wrong beside the uploads is said before any byte of them is spooled."""
    probe = {name: raw[name] for name in raw if name not in _upload_fields(model)}
    try:
        model.model_validate(probe)
    except ValidationError as error:
        for problem in error.errors(include_url=False, include_input=False, include_context=False):
            if problem["loc"] and problem["loc"][0] in probe:
                raise BadInput(problem["msg"], ".".join(map(str, problem["loc"]))) from error


async def _spooled(name: str, hint: Any, value: Any, uploads: Uploads, deadline: float) -> Any:
    if takes_uploads(hint):
        if not isinstance(value, list):
            raise BadInput("expected a list of uploads", name)
        return [await uploads.take(f"{name}.{i}", hint, v, deadline) for i, v in enumerate(value)]
    return await uploads.take(name, hint, value, deadline)
