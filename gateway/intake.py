"""From an HTTP body to the input of a request: JSON or multipart, checked against the app's request model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel
from starlette.requests import Request

from cornstalk.app import App
from cornstalk.errors import AppError, BadInput, TooLarge, UnsupportedMedia
from cornstalk.large import Spooled, without_large
from cornstalk.live import checked, live_request
from cornstalk.media import takes_upload, takes_uploads
from cornstalk.messages import StreamRef, decode_value, encode
from cornstalk.uploads import LIMIT
from cornstalk.values import no_reference, wire
from gateway.body import Form, Json, media_type, parse_json, read_form, read_json
from gateway.uploads import Uploads

INPUT_LIMIT: Final = 8 * 1024 * 1024
"""Bytes of an input without its uploads, as msgpack."""


async def read_input(app: App, request: Request, uploads: Uploads, deadline: float) -> dict[str, Any]:
    """The input in an HTTP body, as `checked_input` gives it.

    Raises what that raises, and BadInput with status 400 for a body that cannot be read.
    """
    model = app.request_model
    kind = media_type(request)
    if kind == "application/json":
        raw = await read_json(request)
    elif kind == "multipart/form-data":
        raw = _values(model, await read_form(request, INPUT_LIMIT, LIMIT))
    else:
        raise UnsupportedMedia(f"expected application/json or multipart/form-data, got {kind[:60]!r}", "Content-Type")
    if not isinstance(raw, dict):
        raise BadInput(f"expected an object with {', '.join(model.model_fields)}, got {type(raw).__name__}")
    return await checked_input(app, raw, uploads, deadline, {})


async def checked_input(
    app: App, raw: dict[str, Any], uploads: Uploads, deadline: float, live: Mapping[str, StreamRef]
) -> dict[str, Any]:
    """The validated input in msgpack form, its uploads and its large values spooled.

    `live`: fields that the client streams in while the request runs. Raises BadInput (422), TooLarge (413),
    UnsupportedMedia (415), naming the field; AppError when the app's request model does not accept what it has made.
    """
    model = app.request_model
    _rename_aliases(model, raw)
    for name in live.keys() & raw.keys():
        raise BadInput("expected it in pieces, as `open` says, got a value as well", name)
    files = {name: hint for name, hint in _upload_fields(model).items() if raw.get(name) is not None}
    app.check_part({name: value for name, value in raw.items() if name not in files})
    for name, hint in files.items():
        raw[name] = await _spooled(name, hint, raw[name], uploads, deadline)
    value = _travelling(_request(app, {**raw, **live}), live)
    if (size := len(encode(value))) > INPUT_LIMIT:
        raise TooLarge(f"expected an input of at most {INPUT_LIMIT} bytes beside its uploads, got {size}")
    _check_stable(app, value)
    large: Spooled = {}
    value = without_large(value, large)
    await uploads.store(large, deadline)
    return value


def _values(model: type[BaseModel], form: Form) -> dict[str, Any]:
    return {name: _value(model, name, parts) for name, parts in form.items()}


def _value(model: type[BaseModel], name: str, parts: list[str | bytes | Json]) -> Any:
    """What the parts of one name mean: text is taken as JSON where the field is no text or bytes."""
    field = model.model_fields.get(name)
    hint = field.annotation if field is not None else None
    if takes_uploads(hint):
        members = [part.value if isinstance(part, Json) else part for part in parts]
        return members[0] if len(members) == 1 and isinstance(members[0], list | None) else members
    if len(parts) > 1:
        raise BadInput(f"expected one part of this name, got {len(parts)}", name)
    part = parts[0]
    if isinstance(part, Json):
        return part.value
    if takes_upload(hint) or (isinstance(part, bytes) and hint in (bytes, bytes | None)):
        return part
    if isinstance(part, bytes):
        raise BadInput("expected text, got a file", name)
    if field is None or hint in (str, str | None, bytes, bytes | None):
        return part
    try:
        return parse_json(part)
    except ValueError:
        return part  # plain text in a form; the model says if it is not what the field takes


def _rename_aliases(model: type[BaseModel], raw: dict[str, Any]) -> None:
    for name, field in model.model_fields.items():
        alias = field.validation_alias or field.alias
        if isinstance(alias, str) and alias in raw:
            raw.setdefault(name, raw.pop(alias))


def _upload_fields(model: type[BaseModel]) -> dict[str, Any]:
    """Fields that hold an upload or a list of them, with their types including marks."""
    fields = {name: _marked(field) for name, field in model.model_fields.items()}
    return {name: hint for name, hint in fields.items() if takes_upload(hint) or takes_uploads(hint)}


def _marked(field: Any) -> Any:
    return Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation


async def _spooled(name: str, hint: Any, value: Any, uploads: Uploads, deadline: float) -> Any:
    if takes_uploads(hint):
        if not isinstance(value, list):
            raise BadInput(f"expected a list of uploads, got {type(value).__name__}", name)
        return [await uploads.take(f"{name}.{i}", hint, v, deadline) for i, v in enumerate(value)]
    return await uploads.take(name, hint, value, deadline)


def _request(app: App, data: dict[str, Any]) -> BaseModel:
    live = live_request(app, data)
    return app.request(data) if live is None else checked(app, live)


def _travelling(request: BaseModel, live: Mapping[str, StreamRef]) -> dict[str, Any]:
    """The request in msgpack form. Raises BadInput that names the field which cannot travel."""
    value: dict[str, Any] = {}
    for name, member in request.__dict__.items():
        if name in live:
            value[name] = live[name]
            continue
        try:
            value[name] = wire(member, no_reference)
            encode(value[name])
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise BadInput(str(error), name) from error
    return value


def _check_stable(app: App, value: dict[str, Any]) -> None:
    """Whoever drives the request validates the stored input again: it must come out as it went in."""
    live = {name: member for name, member in value.items() if isinstance(member, StreamRef)}
    try:
        again = _travelling(_request(app, decode_value(encode(value))), live)
    except BadInput as error:
        raise AppError(f"app {app.name}: its request model refuses what it has made itself: {error}") from error
    if changed := [name for name in value if encode(again[name]) != encode(value[name])]:
        raise AppError(f"app {app.name}: its request model changes {changed[0]!r} each time it is validated")
