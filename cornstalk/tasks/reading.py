"""Text out of pictures."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel

from cornstalk.task import UnitTask
from cornstalk.types import Upload


class Line(BaseModel):
    """One piece of text on a line of its own, or beside another."""

    text: str
    score: float  # 0..1, how sure
    box: list[list[float]]  # its corners (x, y) clockwise from the top left, in pixels of the upright picture


class ReadText(UnitTask):
    """Reads the text in a picture (PNG, JPEG, WebP, GIF, TIFF, BMP), or in one page of it. English and Chinese."""

    kind: ClassVar[str] = "ocr"
    model: str = "pp-ocr-v6-small"

    class Out(BaseModel):
        text: str  # rows from top to bottom, "" if there is none
        lines: list[Line]

    def __call__(self, *, image: Upload, page: int = 0) -> Out:
        raise NotImplementedError


class CountPages(UnitTask):
    """Counts the pages of a TIFF, the frames of a GIF; any other picture has one."""

    kind: ClassVar[str] = "media"

    class Out(BaseModel):
        pages: int

    def __call__(self, *, image: Upload) -> Out:
        raise NotImplementedError
