"""A request with every kind of field that OpenAPI must describe, nested and renamed ones too, answered at once."""

import datetime
import enum
from typing import Any, Literal

from pydantic import BaseModel, Field

from cornstalk import App, CompositeTask, Stream, Upload
from cornstalk.media import AudioUpload, ImageUpload
from cornstalk.tasks.null import Null, NullStream
from cornstalk.types import Audio


class Colour(enum.Enum):
    red = "red"
    green = "green"


class Part(BaseModel):
    name: str = Field(max_length=20)
    weight: float | None = None
    parts: list["Part"] = []


class Ask(BaseModel):
    text: str = Field(alias="Text", description="what to digest")
    count: int = Field(default=0, ge=-5, le=5)
    ratio: float = 0.0
    extra: Any = None
    colour: Colour = Colour.red
    mode: Literal["fast", "slow"] = "fast"
    when: datetime.datetime | None = None
    part: Part | None = None
    tags: dict[str, int] = {}
    raw: bytes = b""
    said: Stream[str] = ""
    sound: AudioUpload | None = None
    pages: list[ImageUpload] = []
    files: list[Upload] | None = None


class Reply(BaseModel):
    digest: str
    text: Stream[str]
    sound: Stream[Audio] = b"\0\0"
    part: Part
    colour: Colour = Colour.green
    raw: bytes = b"\xff"
    ratio: float
    ratios: list[float | None]
    share: float = Field(default=0.5, allow_inf_nan=False)
    file: Stream[bytes] = b"\xff"


class Described(CompositeTask):
    value = Null(name="value")
    talker = NullStream(name="talker")

    def invoke(self, q: Ask) -> Reply:
        texts = [q.text, q.mode, q.colour.value, str(q.count), *sorted(q.tags)]
        digest = self.value(text=q.text, texts=texts, upload=q.sound).digest
        part = q.part or Part(name="none")
        ratios = {"ratio": q.ratio, "ratios": [q.ratio, part.weight, None]}
        return Reply(digest=digest, text=self.talker(text=q.text, pieces=2).text, part=part, raw=q.raw, **ratios)


app = App("described", Described())
