"""Adding up what comes, without a gateway: kinds of pieces, nested fields, repeats and gaps."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from cornstalk.client.events import Chunk
from cornstalk.client.reading import Reading
from cornstalk.client.typed import from_base64, type_at
from cornstalk.errors import GatewayError
from cornstalk.types import Audio, Stream

PCM = b"\x01\x00\x02\x00"


class Part(BaseModel):
    text: Stream[str]
    picture: bytes = b""


class Reply(BaseModel):
    parts: list[Part] = []
    words: Stream[list[str]] = []
    speech: Stream[Audio] = b""
    raw: Stream[bytes] | None = None
    pictures: dict[str, bytes] = {}
    pair: tuple[str, bytes] = ("", b"")


def coded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def piece(field: str, n: int, data: Any, node: str = "n", output: str = "o", **more: str) -> dict[str, Any]:
    return {"field": field, "node": node, "output": output, "n": n, "data": data, **more}


def end(response: Any, **streams: tuple[str, str]) -> dict[str, Any]:
    named = {path.replace("__", "."): {"node": n, "output": o} for path, (n, o) in streams.items()}
    return {"request": "r", "status": "done", "response": response, "streams": named, "times": {}}


def test_bytes_are_told_by_their_media_type_or_the_model() -> None:
    untyped: Reading[dict[str, Any]] = Reading(None)
    chunk = untyped.chunk(1, piece("speech", 0, coded(PCM), media_type="audio/pcm;rate=24000"))
    assert chunk == Chunk("speech", PCM, 0, 1, "audio/pcm;rate=24000", ("speech",))
    typed = Reading(Reply)
    raw = typed.chunk(1, piece("raw", 0, coded(PCM)))
    assert raw is not None
    assert raw.data == PCM
    typed.chunk(2, piece("raw", 1, coded(PCM)))
    assert typed.answer(end({}, raw=("n", "o"))).response.raw == PCM * 2


def test_lists_and_nested_fields_come_back_to_their_places() -> None:
    reading = Reading(Reply)
    reading.chunk(1, piece("words", 0, ["a", "b"], "w"))
    reading.chunk(2, piece("words", 1, ["c"], "w"))
    reading.chunk(3, piece("parts.1.text", 0, "two", "p2"))
    response = {"parts": [{"picture": coded(PCM)}, {}]}
    answer = reading.answer(end(response, words=("w", "o"), parts__0__text=("p1", "o"), parts__1__text=("p2", "o")))
    assert answer.response.words == ["a", "b", "c"]
    assert answer.response.parts == [Part(text="", picture=PCM), Part(text="two")]


def test_fields_of_one_list_are_put_back_in_order() -> None:
    reading: Reading[dict[str, Any]] = Reading(None)
    streams = {}
    for i in (2, 0, 10, 3):
        reading.chunk(20 - i, piece(f"all.{i}", 0, str(i), f"n{i}"))
        streams[f"all__{i}"] = (f"n{i}", "o")
    plain = ["p1", *(f"p{i}" for i in range(4, 10))]
    answer = reading.answer(end({"all": plain}, **streams))
    assert answer.response["all"] == ["0", "p1", "2", "3", "p4", "p5", "p6", "p7", "p8", "p9", "10"]


def test_two_fields_may_show_one_output() -> None:
    reading: Reading[dict[str, Any]] = Reading(None)
    chunk = reading.chunk(1, {**piece("a", 0, "x"), "fields": ["a", "b"]})
    assert chunk is not None
    assert (chunk.field, chunk.fields) == ("a", ("a", "b"))
    assert reading.answer(end({}, a=("n", "o"), b=("n", "o"))).response == {"a": "x", "b": "x"}


def test_a_piece_counts_once_and_none_may_be_missing() -> None:
    reading: Reading[dict[str, Any]] = Reading(None)
    assert reading.chunk(1, piece("t", 0, "a")) is not None
    assert reading.chunk(5, piece("t", 0, "a")) is None
    with pytest.raises(GatewayError, match="expected piece 1, got 2"):
        reading.chunk(6, piece("t", 2, "c"))


def test_what_the_model_does_not_take_is_an_error() -> None:
    with pytest.raises(ValidationError):
        Reading(Reply).answer(end({"parts": 3}))


def test_a_model_may_be_any_type() -> None:
    @dataclass
    class Small:
        text: str

    answer = Reading(Small).answer(end({"text": "x"}))
    assert answer.response == Small("x")


def test_base64_is_decoded_where_the_type_says_bytes() -> None:
    value = {"pictures": {"a": coded(PCM)}, "pair": [coded(PCM), coded(PCM)], "raw": None, "unknown": coded(PCM)}
    decoded = from_base64(Reply, value)
    assert decoded["pictures"] == {"a": PCM}
    assert decoded["pair"] == [coded(PCM), PCM]
    assert (decoded["raw"], decoded["unknown"]) == (None, coded(PCM))
    assert from_base64(None, value) == value


@pytest.mark.parametrize(
    ("path", "kind"),
    [("raw", bytes), ("parts.7.text", str), ("parts.7.none", None), ("pictures.x", bytes), ("pair.1", bytes)],
)
def test_types_by_path(path: str, kind: Any) -> None:
    assert type_at(Reply, path) is kind
