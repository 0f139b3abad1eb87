"""Text in pictures on the real weights, drawn by ourselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from components import models
from components.engine import Cancelled
from components.ocr.pages import PageCounter
from components.ocr.rapid import RapidOcr
from components.registry import engine_for
from cornstalk.errors import EngineError, SetupError
from cornstalk.tasks import CountPages, ReadText
from cornstalk.values import check_outputs
from tests.components.fake_call import FakeCall
from tests.components.media_files import Array, pages, picture, scene

pytestmark = [pytest.mark.models, pytest.mark.asyncio(loop_scope="module")]

PARIS = "What is the capital of France?"


def drawn(*lines: str, size: int = 36, width: int = 700, ink: str = "black", paper: str = "white") -> Array:
    """RGB uint8, a line below the other."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (width, int(size * 1.6 * len(lines)) + 40), paper)
    pen = ImageDraw.Draw(image)
    for number, line in enumerate(lines):
        pen.text((20, 20 + number * size * 1.6), line, fill=ink, font=ImageFont.load_default(size))
    return np.asarray(image)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ocr() -> AsyncIterator[RapidOcr]:
    engine = RapidOcr(ReadText())
    await engine.start()
    yield engine
    await engine.stop()


async def read(ocr: RapidOcr, image: bytes | Array, page: int = 0) -> dict[str, Any]:
    outputs = await ocr.run(FakeCall(image=image, page=page))
    return check_outputs(ReadText(), outputs)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP"])
async def test_text_is_read_in_every_format(ocr: RapidOcr, kind: str) -> None:
    found = await read(ocr, picture(drawn(PARIS, "Answer in 7 words."), kind))
    assert found["text"] == f"{PARIS}\nAnswer in 7 words."
    first, second = found["lines"]
    assert first["score"] > 0.9
    (left, top), (right, _), (_, bottom), _ = first["box"]
    assert 5 < left < 25 < 400 < right < 700
    assert 5 < top < bottom < second["box"][2][1] < 170


async def test_white_on_black_small_and_large(ocr: RapidOcr) -> None:
    assert (await read(ocr, picture(drawn(PARIS, ink="white", paper="black"), "PNG")))["text"] == PARIS
    assert (await read(ocr, picture(drawn(PARIS, size=16, width=300), "PNG")))["text"] == PARIS
    assert (await read(ocr, picture(drawn(PARIS, size=160, width=2600), "JPEG")))["text"] == PARIS


async def test_black_on_nothing(ocr: RapidOcr) -> None:
    """Text on a transparent ground is seen as on paper."""
    pixels = drawn(PARIS)
    ink = 255 - pixels[:, :, :1]
    assert (await read(ocr, picture(np.concatenate([np.zeros_like(pixels), ink], axis=2), "PNG")))["text"] == PARIS


async def test_a_photo_that_lies_on_its_side(ocr: RapidOcr) -> None:
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = 6
    found = await read(ocr, picture(np.rot90(drawn(PARIS)), "JPEG", quality=95, exif=exif))
    assert found["text"] == PARIS


async def test_upside_down(ocr: RapidOcr) -> None:
    assert (await read(ocr, picture(np.rot90(drawn(PARIS), 2), "PNG")))["text"] == PARIS


async def test_each_page(ocr: RapidOcr) -> None:
    book = pages(*(drawn(f"This is page {n}") for n in range(3)))
    assert [(await read(ocr, book, n))["text"] for n in range(3)] == [f"This is page {n}" for n in range(3)]
    with pytest.raises(EngineError, match="no page 3"):
        await read(ocr, book, 3)


async def test_each_of_many_frames(ocr: RapidOcr) -> None:
    frames = np.stack([drawn(f"This is frame {n}") for n in range(3)])
    frames.setflags(write=False)  # as a view of the arena is
    assert [(await read(ocr, frames, n))["text"] for n in range(3)] == [f"This is frame {n}" for n in range(3)]
    for page in (3, -1):
        with pytest.raises(EngineError, match=f"no picture {page} of 3") as caught:
            await read(ocr, frames, page)
        assert caught.value.engine_code == "bad_page"
    for wrong in (frames[0], frames.astype(np.float32), frames[:0], frames[..., :1]):
        with pytest.raises(EngineError, match="not uint8") as caught:
            await read(ocr, wrong)
        assert caught.value.engine_code == "bad_image"


@pytest.mark.parametrize(
    "pixels",
    [np.full((300, 400, 3), 255, np.uint8), np.zeros((1, 1, 3), np.uint8), scene(), np.zeros((5, 400, 3), np.uint8)],
)
async def test_no_text(ocr: RapidOcr, pixels: Array) -> None:
    assert await read(ocr, picture(pixels, "PNG")) == {"text": "", "lines": []}


BROKEN: dict[str, tuple[Callable[[], bytes], str]] = {
    "nothing": (lambda: b"", "bad_image"),
    "text": (lambda: b"I am a text", "bad_image"),
    "cut": (lambda: picture(drawn(PARIS), "PNG")[:-100], "bad_image"),
    "a thread": (lambda: picture(np.zeros((2, 9_000, 3), np.uint8), "PNG"), "bad_image"),
    "bomb": (lambda: picture(np.zeros((9_000, 9_000), bool), "PNG"), "too_large"),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_what_is_no_picture_is_told_so(ocr: RapidOcr, name: str) -> None:
    make, code = BROKEN[name]
    with pytest.raises(EngineError) as caught:
        await read(ocr, make())
    assert (caught.value.engine_code, caught.value.transient) == (code, False)


async def test_two_at_once_are_read_as_each_alone(ocr: RapidOcr) -> None:
    files = [picture(drawn(text), "PNG") for text in (PARIS, "Another picture")]
    alone = [await read(ocr, f) for f in files]
    assert await asyncio.gather(*(read(ocr, f) for f in files)) == alone


async def test_cancelled_it_does_not_read(ocr: RapidOcr) -> None:
    call = FakeCall(image=picture(drawn(PARIS), "PNG"), page=0)
    call.cancelled.set()
    with pytest.raises(Cancelled):
        await ocr.run(call)


async def test_a_model_that_is_not_here_says_which_are() -> None:
    engine = RapidOcr(ReadText(model="tesseract"))
    with pytest.raises(SetupError, match="pp-ocr-v6-small"):
        await engine.start()
    await engine.stop()
    assert {path.suffix for path in models.ocr("pp-ocr-v6-small").values()} == {".onnx"}


async def test_pages_are_counted() -> None:
    engine = engine_for(CountPages())
    assert isinstance(engine, PageCounter)
    await engine.start()
    for image, count in ((pages(scene(), scene(), scene()), 3), (picture(scene(), "PNG"), 1)):
        assert await engine.run(FakeCall(image=image)) == {"pages": count}
    with pytest.raises(EngineError) as caught:
        await engine.run(FakeCall(image=b"%PDF-1.7"))
    assert caught.value.engine_code == "bad_image"
    await engine.stop()
