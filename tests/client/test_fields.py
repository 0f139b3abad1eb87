"""From values to bodies: what is sent as a form, and what as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from python_multipart.multipart import FormParser, parse_options_header

from cornstalk.client.fields import Typed, body_of, merged
from cornstalk.errors import BadInput


def parts(fields: dict[str, Any]) -> dict[str, list[str | bytes]] | None:
    """The form that is sent, by a parser that is not ours: text, and bytes of files. None when it is JSON."""
    body = body_of(fields)
    kind, options = parse_options_header(body.media_type)
    if kind != b"multipart/form-data":
        return None
    found: dict[str, list[str | bytes]] = {}

    def on_field(field: Any) -> None:
        found.setdefault(field.field_name.decode(), []).append(field.value.decode())

    def on_file(file: Any) -> None:
        file.file_object.seek(0)
        found.setdefault(file.field_name.decode(), []).append(file.file_object.read())

    parser = FormParser("multipart/form-data", on_field, on_file, boundary=options[b"boundary"])
    parser.write(body.content)
    parser.finalize()
    return found


def test_without_files_it_is_json() -> None:
    body = body_of({"text": "é", "n": 3, "none": None})
    assert body.media_type == "application/json"
    assert json.loads(body.content) == {"text": "é", "n": 3, "none": None}


def test_with_files_it_is_a_form_that_says_the_same() -> None:
    sent = {"text": 'a "b"\r\n--x', "n": 3, "on": True, "d": {"x": [1]}, "sound": b"\x00\r\n", "all": [b"1", b"2"]}
    assert parts(sent) == {
        "text": ['a "b"\r\n--x'],
        "n": ["3"],
        "on": ["true"],
        "d": ['{"x":[1]}'],
        "sound": [b"\x00\r\n"],
        "all": [b"1", b"2"],
    }


@pytest.mark.parametrize("value", ["5", "null", '"x"', "[]", None, []])
def test_what_a_form_would_change_is_sent_as_json(value: Any) -> None:
    body = body_of({"v": value, "sound": b"x", "all": [b"1"]})
    url = "data:application/octet-stream;base64,"
    assert json.loads(body.content) == {"v": value, "sound": f"{url}eA==", "all": [f"{url}MQ=="]}


def test_what_a_person_typed_is_for_the_gateway_to_read() -> None:
    assert parts({"n": Typed("5"), "text": Typed("null")}) == {"n": ["5"], "text": ["null"]}


def test_names_with_quotes() -> None:
    assert parts({'a"b': b"x"}) == {"a%22b": [b"x"]}


def test_what_json_cannot_hold_names_its_field() -> None:
    with pytest.raises(BadInput) as caught:
        body_of({"ok": 1, "bad": object()})
    assert caught.value.field == "bad"


def test_fields_win_over_the_request() -> None:
    assert merged({"a": 1, "b": 2}, {"b": 3}) == {"a": 1, "b": 3}
