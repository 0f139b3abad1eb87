"""Messages of batch jobs: what clients may send, in both forms, and that nothing else gets through."""

from __future__ import annotations

import json
from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cornstalk.batch import Result, Summary, encoded, encoding_of, job_id, named, row_request, submission
from cornstalk.errors import BadInput
from cornstalk.messages import NewerVersion, Upload

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.text(min_size=1, max_size=255), st.lists(VALUES, max_size=5), st.booleans())
def test_rows_come_through_as_they_were_sent(key: str, rows: list[Any], as_json: bool) -> None:
    body = {"idempotency_key": key, "rows": rows}
    data = json.dumps(body).encode() if as_json else msgpack.packb(body)
    assert encoding_of(data) == ("json" if as_json else "msgpack")
    found = submission(data)
    decode = msgspec.json.decode if as_json else msgspec.msgpack.decode
    assert [decode(row) for row in found.inputs()] == rows
    assert (found.idempotency_key, found.first, found.last, found.deadline) == (key, 0, True, 86_400)
    about = named(data)
    assert about is not None
    assert about.idempotency_key == key


@given(st.binary(max_size=200))
def test_any_bytes_are_a_submission_or_refused(data: bytes) -> None:
    try:
        submission(data)
    except (BadInput, NewerVersion):
        pass
    named(data)


@pytest.mark.parametrize("blank", [" ", "\n", "\r\n", "\t "])
def test_json_may_begin_with_blanks(blank: str) -> None:
    assert submission(f'{blank}{{"idempotency_key": "k", "row": {{}}}}'.encode()).idempotency_key == "k"


@pytest.mark.parametrize("encode", [lambda body: json.dumps(body).encode(), msgpack.packb])
@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"idempotency_key": ""}, "idempotency_key"),
        ({"idempotency_key": "k" * 256}, "idempotency_key"),
        ({"idempotency_key": "k", "deadline": 86_401}, "deadline"),
        ({"idempotency_key": "k", "priority": 101}, "priority"),
        ({"idempotency_key": "k", "last": "yes"}, "last"),
        ({"rows": []}, ""),
        ([], ""),
    ],
)
def test_what_is_wrong_is_named(encode: Any, body: Any, field: str) -> None:
    with pytest.raises(BadInput) as caught:
        submission(encode(body))
    assert caught.value.field == field


def test_a_deadline_is_a_number() -> None:
    for data in (
        msgpack.packb({"idempotency_key": "k", "deadline": float("nan")}),
        b'{"idempotency_key": "k", "deadline": NaN}',
    ):
        with pytest.raises(BadInput):
            submission(data)


def test_a_later_version_is_not_judged() -> None:
    for data in (b'{"v": 2, "idempotency_key": "k", "more": 1}', b'{"v": 2, "idempotency_key": "k", "row": {}}'):
        with pytest.raises(NewerVersion):
            submission(data)


def test_deep_nesting_is_refused_and_breaks_nothing() -> None:
    for data in (b'{"idempotency_key": "k", "rows": ' + b"[" * 50_000, b"\x82\xa1k" + b"\x91" * 50_000):
        with pytest.raises(BadInput):
            submission(data)


def test_results_carry_bytes_and_files_in_both_forms() -> None:
    result = Result(job="j", row=1, status="done", response={"sound": b"\x00\xff", "file": Upload("ab", 1, "x/y")})
    assert json.loads(encoded(result, "json"))["response"] == {"sound": "AP8=", "file": {"upload": "ab"}}
    assert msgpack.unpackb(encoded(result, "msgpack"))["response"] == {"sound": b"\x00\xff", "file": {"upload": "ab"}}
    assert json.loads(encoded(Summary(job="j", rows=2, status="done"), "json"))["failed"] == 0


def test_ids_are_those_that_the_guide_says() -> None:
    assert (
        job_id("default", "hello", "night-1") == "6844433360c79f9a19c0bccd39c0a8fb"
    )  # printf 'default\\0hello\\0night-1' | b2sum -l 128
    assert row_request("j", 1) != row_request("j", 11) != row_request("j1", 1)
