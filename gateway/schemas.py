"""JSON schemas of an app's models, as its gateway takes requests and gives answers. All pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode
from pydantic_core import core_schema

from cornstalk.app import App
from cornstalk.media import takes_upload, takes_uploads
from cornstalk.types import field_type, is_stream
from gateway.encode import NO_NUMBERS
from gateway.streams import media_type

Schema = dict[str, Any]

PREFIX: Final = "#/components/schemas/"
_STRING: Final[Schema] = {"type": "string"}
_NO_NUMBER: Final[Schema] = {"enum": list(NO_NUMBERS)}
_TEXT: Final = ("string", "integer", "number", "boolean")
"""Types whose text form means the same in a form and in JSON."""


def ref(name: str) -> Schema:
    return {"$ref": PREFIX + name}


def obj(optional: dict[str, Schema] | None = None, /, **required: Schema) -> Schema:
    """The schema of an object with these members."""
    return {"type": "object", "properties": required | (optional or {}), "required": list(required)}


def app_schemas(app: App) -> dict[str, Schema]:
    """Component schemas by name: `<app>.request`, `.form`, `.response`, `.answer`, `.event` and what these refer to.

    An app's name has no dot, so that no two apps share a name here, and none has that of a schema of the gateway.
    """
    request, parts = _generated(_Request, app.request_model, f"{app.name}.request")
    response, more = _generated(_Response, app.response_model, f"{app.name}.response")
    found = {
        f"{app.name}.request": _json(app.request_model, request),
        f"{app.name}.form": _form(app.request_model, request),
        f"{app.name}.response": (response := _returned(app.response_model, response)),
        f"{app.name}.event": _event(app.response_model, response),
        **parts,
        **more,
    }
    found[f"{app.name}.answer"] = obj(
        request=ref("Id"), status={"const": "done"}, response=ref(f"{app.name}.response"), times=ref("Times")
    )
    return found


class _Request(GenerateJsonSchema):
    """By the names of fields, which are taken wherever an alias is; no other field is."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}

    def bytes_schema(self, schema: core_schema.BytesSchema) -> Schema:
        """JSON has text, which is taken as its UTF-8."""
        return {"type": "string"}

    def int_schema(self, schema: core_schema.IntSchema) -> Schema:
        """An int travels in 64 bits."""
        found: Schema = super().int_schema(schema)
        if "exclusiveMinimum" not in found:
            found.setdefault("minimum", -(2**63))
        if "exclusiveMaximum" not in found:
            found.setdefault("maximum", 2**64 - 1)
        return found

    def float_schema(self, schema: core_schema.FloatSchema) -> Schema:
        """As answered; one that has bounds has no such name within them for sure."""
        found: Schema = super().float_schema(schema)
        return _or_no_number(found, schema) if len(found) == 1 else found

    def model_schema(self, schema: core_schema.ModelSchema) -> Schema:
        found: Schema = super().model_schema(schema)
        return found | {"additionalProperties": False} if "properties" in found else found


class _Response(GenerateJsonSchema):
    """As an answer carries it: every field, by its name, bytes as base64."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}

    def bytes_schema(self, schema: core_schema.BytesSchema) -> Schema:
        return {"type": "string", "contentEncoding": "base64"}

    def float_schema(self, schema: core_schema.FloatSchema) -> Schema:
        return _or_no_number(super().float_schema(schema), schema)

    def model_schema(self, schema: core_schema.ModelSchema) -> Schema:
        found: Schema = super().model_schema(schema)
        return found | {"required": list(found["properties"])} if found.get("properties") else found


def _or_no_number(number: Schema, schema: core_schema.FloatSchema) -> Schema:
    return number if schema.get("allow_inf_nan") is False else {"anyOf": [number, _NO_NUMBER]}


def _generated(
    generator: type[GenerateJsonSchema], model: type[BaseModel], prefix: str, mode: JsonSchemaMode = "validation"
) -> tuple[Schema, dict[str, Schema]]:
    """The schema of a model, and by component name what it refers to."""
    template = f"{PREFIX}{prefix}.{{model}}"
    schema = model.model_json_schema(by_alias=False, ref_template=template, schema_generator=generator, mode=mode)
    return schema, {f"{prefix}.{name}": part for name, part in schema.pop("$defs", {}).items()}


def _json(model: type[BaseModel], request: Schema) -> Schema:
    """The request in JSON: a file is a data URL, base64, or the digest of an upload."""
    return _with_files(model, request, lambda kind: ref("Upload") | kind, lambda schema: schema)


def _returned(model: type[BaseModel], response: Schema) -> Schema:
    """A response: a file is named as a request may name it."""
    return _with_files(model, response, lambda kind: ref("Returned") | kind, lambda schema: schema)


def _form(model: type[BaseModel], request: Schema) -> Schema:
    """The same request in parts of a form: files as they are, text as it is, anything else as JSON in a part."""
    return _with_files(model, request, lambda kind: {"type": "string", "format": "binary"} | kind, _text, _without_null)


def _with_files(
    model: type[BaseModel],
    request: Schema,
    file: Callable[[Schema], Schema],
    other: Callable[[Schema], Schema],
    field: Callable[[Schema], Schema] = lambda schema: schema,
) -> Schema:
    if "properties" not in request:  # it contains itself
        return request
    fields = {
        name: _filed(field(schema), file) if _is_file(model, name) else other(schema)
        for name, schema in request["properties"].items()
    }
    return {**request, "properties": fields}


def _filed(schema: Schema, file: Callable[[Schema], Schema]) -> Schema:
    """A copy in which `file`, told which media it takes, says what stands for each Upload."""
    if schema.get("format") == "binary":
        rest = {key: value for key, value in schema.items() if key not in ("type", "format")}
        return file(rest)
    found = {**schema}
    if "items" in schema:
        found["items"] = _filed(schema["items"], file)
    if "anyOf" in schema:
        found["anyOf"] = [_filed(choice, file) for choice in schema["anyOf"]]
    return found


def _is_file(model: type[BaseModel], name: str) -> bool:
    if name not in model.model_fields:  # json_schema_extra of the app says more than its model
        return False
    hint = model.model_fields[name].annotation
    return takes_upload(hint) or takes_uploads(hint)


def _without_null(schema: Schema) -> Schema:
    """A part that is not there is how a form says null. The names of what is no number are text as numbers are."""
    rest = [choice for choice in schema.get("anyOf", ()) if choice.get("type") != "null" and choice != _NO_NUMBER]
    if len(rest) != 1:
        return schema
    only: Schema = rest[0]
    return {key: value for key, value in schema.items() if key not in ("anyOf", "default")} | only


def _text(schema: Schema) -> Schema:
    bare = _without_null(schema)
    if bare.get("type") in _TEXT:
        return bare
    about: Schema = {key: value for key, value in schema.items() if key in ("title", "description")}
    return {**about, "type": "string", "contentMediaType": "application/json", "contentSchema": schema}


def _event(model: type[BaseModel], response: Schema) -> Schema:
    """One server-sent event as an object of its lines; of a WebSocket, what `data` holds stands in the frame."""
    number = {"type": "string", "pattern": "^[0-9]+$", "description": "where to resume"}
    kinds = {"chunk": _chunk(model, response), "end": _end(model, response), "error": ref("Failed")}
    events = []
    for kind, schema in kinds.items():
        data = {"type": "string", "contentMediaType": "application/json", "contentSchema": schema}
        events.append(obj(event={"const": kind}, **({"id": number} if kind == "chunk" else {}), data=data))
    return {"anyOf": events}


def _chunk(model: type[BaseModel], response: Schema) -> Schema:
    """What `data` of an event of kind `chunk` is: one piece of a stream field. Pieces of a field add up."""
    fields = response.get("properties", {})
    pieces = [
        _piece({"const": name}, fields[name], media_type(model, name)) for name in _streams(model) if name in fields
    ]
    inner: Schema = {"type": "string", "pattern": r"\."}
    nested = _piece(inner, {"type": ["string", "array"]}, "")
    nested["properties"]["media_type"] = _STRING | {"description": "of bytes, which are base64"}
    return {"anyOf": [*pieces, nested]}


def _piece(field: Schema, whole: Schema, media_type: str) -> Schema:
    """`whole`: the schema of what the pieces add up to."""
    data: Schema = {key: value for key, value in whole.items() if key in ("type", "items", "contentEncoding")}
    fields: Schema = {"type": "array", "items": _STRING, "minItems": 2, "description": "all that the piece belongs to"}
    piece = obj(
        {"fields": fields}, field=field, node=_STRING, output=_STRING, n={"type": "integer", "minimum": 0}, data=data
    )
    if media_type:
        piece["properties"]["media_type"] = {"const": media_type}
        piece["required"].append("media_type")
    return piece


def _end(model: type[BaseModel], response: Schema) -> Schema:
    """What `data` of an event of kind `end` is: the response without its stream fields, which came as chunks."""
    streams = _streams(model)
    plain = {**response}
    if "properties" in response:
        plain["properties"] = {name: schema for name, schema in response["properties"].items() if name not in streams}
    if "required" in response:
        plain["required"] = [name for name in response["required"] if name not in streams]
    source = obj(node=_STRING, output=_STRING)
    return obj(
        request=ref("Id"),
        status={"const": "done"},
        response=plain,
        streams={"type": "object", "additionalProperties": source},
        times=ref("Times"),
    )


def _streams(model: type[BaseModel]) -> list[str]:
    return [name for name, field in model.model_fields.items() if is_stream(field_type(field))]
