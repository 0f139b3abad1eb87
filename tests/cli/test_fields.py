"""From the command line to the fields of a request."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel

from cornstalk.cli.errors import USAGE, CliError
from cornstalk.cli.fields import file_field, split_fields, split_files, text_field
from cornstalk.media import AudioUpload, ImageUpload, VideoUpload
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


class Many(BaseModel):
    pages: list[ImageUpload] = []
    clips: list[VideoUpload] | None = None
    anything: Upload | None = None
    names: list[str] = []


class Pictures(BaseModel):
    before: ImageUpload
    after: ImageUpload


class Two(BaseModel):
    one: str
    other: str


class Count(BaseModel):
    n: int


def test_text_and_files_find_their_fields() -> None:
    schema = Question.model_json_schema()
    assert text_field("app", schema) == "text"
    assert file_field("app", schema, "audio") == "audio"
    assert file_field("app", schema, "image") == "picture"


def test_lists_of_files_and_files_of_any_kind() -> None:
    schema = Many.model_json_schema()
    assert file_field("app", schema, "image") == "pages"
    assert file_field("app", schema, "video") == "clips"
    assert file_field("app", schema, "audio") == "anything"
    with pytest.raises(CliError, match="takes no TEXT"):
        text_field("app", schema)


@pytest.mark.parametrize(("model", "words"), [(Two, "one or other"), (Count, "takes no TEXT")])
def test_text_that_has_no_one_place_is_refused(model: type[BaseModel], words: str) -> None:
    with pytest.raises(CliError, match=words) as caught:
        text_field("app", model.model_json_schema())
    assert caught.value.exit_code == USAGE


@pytest.mark.parametrize(
    ("model", "kind", "words"),
    [(Count, "audio", "takes no --audio"), (Pictures, "audio", "takes no"), (Pictures, "image", "before or after")],
)
def test_a_file_that_has_no_one_place_is_refused(model: type[BaseModel], kind: str, words: str) -> None:
    with pytest.raises(CliError, match=words) as caught:
        file_field("app", model.model_json_schema(), kind)
    assert caught.value.exit_code == USAGE


def test_field_options() -> None:
    assert split_fields(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    for wrong in (["a"], ["=1"], ["a=1", "a=2"]):
        with pytest.raises(CliError):
            split_fields(wrong)
    assert split_files(["a=x.png", "a=b=c.png"]) == [("a", Path("x.png")), ("a", Path("b=c.png"))]
    with pytest.raises(CliError):
        split_files(["x.png"])
