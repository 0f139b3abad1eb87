"""From the command line to the fields of a request."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from cornstalk.cli.errors import USAGE, CliError
from cornstalk.cli.fields import audio_field, split_fields, text_field
from cornstalk.media import AudioUpload
from cornstalk.types import Upload


class Inner(BaseModel):
    note: str


class Question(BaseModel):
    inner: Inner | None = None
    style: str = "plain"
    text: str | None = None
    picture: Upload | None = None
    audio: AudioUpload | None = None
    speak: bool = True


class Two(BaseModel):
    one: str
    other: str


class Count(BaseModel):
    n: int


def test_text_and_audio_find_their_fields() -> None:
    schema = Question.model_json_schema()
    assert text_field("app", schema) == "text"
    assert audio_field("app", schema) == "audio"


@pytest.mark.parametrize(("model", "words"), [(Two, "one or other"), (Count, "takes no TEXT")])
def test_text_that_has_no_one_place_is_refused(model: type[BaseModel], words: str) -> None:
    with pytest.raises(CliError, match=words) as caught:
        text_field("app", model.model_json_schema())
    assert caught.value.exit_code == USAGE


def test_audio_for_an_app_without_uploads_is_refused() -> None:
    with pytest.raises(CliError, match="takes no --audio"):
        audio_field("app", Count.model_json_schema())


def test_field_options() -> None:
    assert split_fields(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    for wrong in (["a"], ["=1"], ["a=1", "a=2"]):
        with pytest.raises(CliError):
            split_fields(wrong)
