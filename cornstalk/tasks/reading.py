"""Text out of pictures, and out of the frames of videos."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel

from cornstalk.task import CompositeTask, UnitTask
from cornstalk.types import Tensor, Upload


class Line(BaseModel):
    """One piece of text on a line of its own, or beside another."""

    text: str
    score: float  # 0..1, how sure
    box: list[list[float]]  # its corners (x, y) clockwise from the top left, in pixels of the upright picture


class ReadText(UnitTask):
    """Reads the text in a picture (PNG, JPEG, WebP, GIF, TIFF, BMP), or in one page of it. English and Chinese.

    Of a tensor uint8 [n, height, width, 3] a page is one of its n pictures.
    """

    kind: ClassVar[str] = "ocr"
    model: str = "pp-ocr-v6-small"

    class Out(BaseModel):
        text: str  # rows from top to bottom, "" if there is none
        lines: list[Line]

    def __call__(self, *, image: Upload | Tensor, page: int = 0) -> Out:
        raise NotImplementedError


class CountPages(UnitTask):
    """Counts the pages of a TIFF, the frames of a GIF; any other picture has one."""

    kind: ClassVar[str] = "media"

    class Out(BaseModel):
        pages: int

    def __call__(self, *, image: Upload) -> Out:
        raise NotImplementedError


class SampleFrames(UnitTask):
    """Takes frames out of a video (MP4, MOV, WebM, Matroska, OGG, AVI) of up to 10 minutes.

    One of each second from the first on; of a longer video `most`, each from the middle of an equal part. A frame is at
    most 1280 pixels long and wide.
    """

    kind: ClassVar[str] = "media"

    class Out(BaseModel):
        frames: Tensor  # uint8 [n, height, width, 3], upright
        times: list[float]  # seconds from the first frame to each

    def __call__(self, *, video: Upload, most: int = 32) -> Out:
        raise NotImplementedError


class Shown(BaseModel):
    """A text that a video shows."""

    at: float  # seconds from the first frame to the one in which it was first seen
    text: str


class Watcher(CompositeTask):
    """Video in, the texts that it shows out, each time that another one comes. Frames are read side by side."""

    sampler = SampleFrames()
    reader = ReadText()

    def invoke(self, video: Upload) -> list[Shown]:
        sampled = self.sampler(video=video)
        read = [self.reader(image=sampled.frames, page=page).text for page in range(len(sampled.times))]
        shown, before = [], ""
        for at, text in zip(sampled.times, read, strict=True):
            if text not in ("", before):
                shown.append(Shown(at=at, text=text))
            before = text
        return shown
