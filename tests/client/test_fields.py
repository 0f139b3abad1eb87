"""From values to bodies: files make it a form, in which all else is JSON as well."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from python_multipart.multipart import FormParser, parse_options_header

from cornstalk import Upload
from cornstalk.client.ask import Ask
from cornstalk.client.fields import Typed, body_of, merged
from cornstalk.errors import BadInput, TooLarge

PLAIN: dict[str, Any] = {
    "app": "a",
    "key": "k",
    "deadline": 1.0,
    "seed": None,
    "durable": False,
    "resume_grace": 0.0,
    "tenant": None,
    "retry_refused": False,
}


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


def test_floats_that_are_no_numbers_go_by_their_names() -> None:
    value = [float("nan"), float("inf"), -float("inf"), 0.5]
    said = '["NaN","Infinity","-Infinity",0.5]'
    assert body_of({"v": value}).content == f'{{"v":{said}}}'.encode()
    assert parts({"v": value, "sound": b"x"}) == {"v": [said], "sound": [b"x"]}


def test_with_files_it_is_a_form_that_says_the_same() -> None:
    sent = {"text": 'a "b"\r\n--x', "n": 3, "on": True, "d": {"x": [1]}, "sound": b"\x00\r\n", "all": [b"1", b"2"]}
    assert parts(sent) == {
        "text": ['"a \\"b\\"\\r\\n--x"'],
        "n": ["3"],
        "on": ["true"],
        "d": ['{"x":[1]}'],
        "sound": [b"\x00\r\n"],
        "all": [b"1", b"2"],
    }


@pytest.mark.parametrize("value", ["5", "null", '"x"', "[]", None, [], True, {"a": [None]}])
def test_beside_a_file_every_value_is_json(value: Any) -> None:
    assert parts({"v": value, "sound": b"x", "all": [b"1"]}) == {
        "v": [json.dumps(value, separators=(",", ":"))],
        "sound": [b"x"],
        "all": [b"1"],
    }


def test_what_was_sent_before_is_named() -> None:
    there = Upload("d" * 64, 3, "image/png")
    assert json.loads(body_of({"image": there, "all": [there]}).content) == {
        "image": {"upload": "d" * 64},
        "all": [{"upload": "d" * 64}],
    }
    assert parts({"all": [b"1", there]}) == {"all": [b"1", '{"upload":"' + "d" * 64 + '"}']}


def test_a_file_over_the_limit_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(10 << 40)
    with pytest.raises(TooLarge) as caught:
        Ask(**PLAIN, fields={"film": path}).read()
    assert caught.value.field == "film"


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
