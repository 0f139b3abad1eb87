"""Pictures of every format: the right pixels, or a typed error."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.media.images import count_pages, decode_image
from cornstalk.errors import EngineError
from cornstalk.media import image_size, sniff
from tests.components.media_files import Array, pages, picture, scene

pytestmark = pytest.mark.models

SCENE = scene()
GRAY = SCENE[:, :, 0]
GRAY_RGB = np.repeat(GRAY[:, :, None], 3, axis=2)
DEEP = GRAY.astype(np.uint16) * 257


def alpha() -> Array:
    """Its left half is transparent."""
    opaque = np.full((48, 64, 1), 255, np.uint8)
    opaque[:, :32] = 0
    return np.concatenate([SCENE, opaque], axis=2)


def on_white() -> Array:
    seen = SCENE.copy()
    seen[:, :32] = 255
    return seen


def png16(pixels: Array) -> bytes:
    """RGB with 16 bit, which Pillow reads but does not write. uint16 [h, w, 3]."""
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 16, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def black_and_white() -> Array:
    return GRAY > 127


FORMATS: dict[str, tuple[Callable[[], bytes], str, Callable[[], Array], float]] = {
    # name: file, media type, expected pixels, tolerance of the mean difference
    "png": (lambda: picture(SCENE, "PNG"), "image/png", lambda: SCENE, 0),
    "png 8 bit gray": (lambda: picture(GRAY, "PNG"), "image/png", lambda: GRAY_RGB, 0),
    "png 16 bit gray": (lambda: picture(DEEP, "PNG"), "image/png", lambda: GRAY_RGB, 0),
    "png 16 bit rgb": (lambda: png16(SCENE.astype(np.uint16) * 257), "image/png", lambda: SCENE, 0),
    "png 1 bit": (
        lambda: picture(black_and_white(), "PNG"),
        "image/png",
        lambda: np.repeat(black_and_white()[:, :, None] * np.uint8(255), 3, axis=2),
        0,
    ),
    "png palette": (lambda: picture(SCENE, "PNG", "P"), "image/png", lambda: SCENE, 30),
    "png rgba": (lambda: picture(alpha(), "PNG"), "image/png", on_white, 0),
    "png gray alpha": (
        lambda: picture(alpha(), "PNG", "LA"),
        "image/png",
        lambda: np.where(on_white() == 255, 255, np.rint(SCENE @ [0.299, 0.587, 0.114])[..., None]),
        1,
    ),
    "jpeg": (lambda: picture(SCENE, "JPEG", quality=95), "image/jpeg", lambda: SCENE, 2),
    "jpeg progressive": (
        lambda: picture(SCENE, "JPEG", quality=95, progressive=True),
        "image/jpeg",
        lambda: SCENE,
        2,
    ),
    "jpeg gray": (lambda: picture(GRAY, "JPEG", quality=95), "image/jpeg", lambda: GRAY_RGB, 2),
    "jpeg cmyk": (lambda: picture(SCENE, "JPEG", "CMYK", quality=95), "image/jpeg", lambda: SCENE, 3),
    "webp": (lambda: picture(SCENE, "WEBP", quality=90), "image/webp", lambda: SCENE, 4),
    "webp lossless": (lambda: picture(SCENE, "WEBP", lossless=True), "image/webp", lambda: SCENE, 0),
    "webp alpha": (lambda: picture(alpha(), "WEBP", lossless=True), "image/webp", on_white, 0),
    "gif": (lambda: picture(SCENE, "GIF"), "image/gif", lambda: SCENE, 30),
    "gif of many frames": (
        lambda: pages(SCENE, SCENE[::-1], kind="GIF"),
        "image/gif",
        lambda: SCENE,
        30,
    ),
    "tiff": (lambda: picture(SCENE, "TIFF"), "image/tiff", lambda: SCENE, 0),
    "tiff lzw": (lambda: picture(SCENE, "TIFF", compression="tiff_lzw"), "image/tiff", lambda: SCENE, 0),
    "tiff jpeg": (
        lambda: picture(SCENE, "TIFF", compression="jpeg", quality=95),
        "image/tiff",
        lambda: SCENE,
        4,
    ),
    "tiff big": (lambda: picture(SCENE, "TIFF", big_tiff=True), "image/tiff", lambda: SCENE, 0),
    "tiff fax": (
        lambda: picture(black_and_white(), "TIFF", compression="group4"),
        "image/tiff",
        lambda: np.repeat(black_and_white()[:, :, None] * np.uint8(255), 3, axis=2),
        0,
    ),
    "tiff 16 bit": (lambda: picture(DEEP, "TIFF"), "image/tiff", lambda: GRAY_RGB, 0),
    "tiff 32 bit": (lambda: picture(DEEP.astype(np.int32) << 15, "TIFF"), "image/tiff", lambda: GRAY_RGB >> 1, 0),
    "tiff float": (lambda: picture((GRAY / 255).astype(np.float32), "TIFF"), "image/tiff", lambda: GRAY_RGB, 0),
    "tiff cmyk": (lambda: picture(SCENE, "TIFF", "CMYK"), "image/tiff", lambda: SCENE, 1),
    "bmp": (lambda: picture(SCENE, "BMP"), "image/bmp", lambda: SCENE, 0),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_its_pixels(name: str) -> None:
    make, media_type, expected, tolerance = FORMATS[name]
    data = make()
    assert sniff(data) == media_type
    assert image_size(data, media_type) == (64, 48)
    pixels = decode_image(data)
    assert (pixels.shape, pixels.dtype) == ((48, 64, 3), np.uint8)
    assert np.abs(pixels.astype(float) - expected()).mean() <= tolerance


TURNS: dict[int, Callable[[Array], Array]] = {  # EXIF orientation: from the stored pixels to those that are seen
    1: lambda p: p,
    2: lambda p: p[:, ::-1],
    3: lambda p: p[::-1, ::-1],
    4: lambda p: p[::-1],
    5: lambda p: p.transpose(1, 0, 2),
    6: lambda p: np.rot90(p, -1),
    7: lambda p: p[::-1, ::-1].transpose(1, 0, 2),
    8: lambda p: np.rot90(p),
}


@pytest.mark.parametrize("orientation", TURNS)
def test_a_photo_is_turned_as_its_exif_says(orientation: int) -> None:
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = orientation
    data = picture(SCENE, "JPEG", quality=95, exif=exif)
    expected = TURNS[orientation](SCENE)
    pixels = decode_image(data)
    assert pixels.shape == expected.shape
    assert np.abs(pixels.astype(float) - expected).mean() < 2


@pytest.mark.filterwarnings("ignore:Corrupt EXIF:UserWarning")
def test_broken_exif_does_not_lose_the_picture() -> None:
    data = picture(SCENE, "JPEG", quality=95, exif=b"Exif\0\0II*\0\xff\xff\xff\x7f" + bytes(20))
    assert np.abs(decode_image(data).astype(float) - SCENE).mean() < 2


def test_each_page_of_a_tiff() -> None:
    data = pages(SCENE, SCENE[::-1], SCENE[:20, :10])
    assert (count_pages(data), image_size(data, "image/tiff")) == (3, (64, 48))
    assert np.array_equal(decode_image(data, page=1), SCENE[::-1])
    assert np.array_equal(decode_image(data, page=2), SCENE[:20, :10])
    for page in (3, -1):
        with pytest.raises(EngineError, match=f"no page {page}") as caught:
            decode_image(data, page=page)
        assert caught.value.engine_code == "bad_page"


def test_a_page_after_the_first_that_is_too_large() -> None:
    with pytest.raises(EngineError) as caught:
        decode_image(pages(SCENE[:5, :5], SCENE), page=1, pixels=100)
    assert caught.value.engine_code == "too_large"


def test_a_single_picture_has_one_page() -> None:
    assert [count_pages(picture(SCENE, kind)) for kind in ("PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP")] == [1] * 6
    assert count_pages(pages(SCENE, SCENE[::-1], kind="GIF")) == 2
    assert count_pages(pages(SCENE, SCENE, kind="MPO")) == 1


def bomb(kind: str) -> bytes:
    """A few bytes that say they are 30,000 x 30,000 pixels."""
    size = 30_000
    match kind:
        case "png":
            body = b"IHDR" + struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
            head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body))
            return head + picture(SCENE, "PNG")[33:]
        case "gif":
            data = bytearray(picture(SCENE, "GIF"))
            data[6:10] = struct.pack("<HH", size, size)
        case "jpeg":
            data = bytearray(picture(SCENE, "JPEG"))
            at = data.index(b"\xff\xc0")
            data[at + 5 : at + 9] = struct.pack(">HH", size, size)
        case "bmp":
            data = bytearray(picture(SCENE, "BMP"))
            data[18:26] = struct.pack("<ii", size, -size)
        case "webp":
            data = bytearray(picture(alpha(), "WEBP"))
            data[24:30] = struct.pack("<I", size - 1)[:3] * 2
        case _:
            data = bytearray(picture(SCENE, "TIFF"))
            for tag in (256, 257):
                at = data.index(struct.pack("<HH", tag, 4))
                data[at + 8 : at + 12] = struct.pack("<I", size)
    return bytes(data)


@pytest.mark.parametrize("kind", ["png", "gif", "jpeg", "bmp", "webp", "tiff"])
def test_a_bomb_is_told_by_its_header(kind: str) -> None:
    data = bomb(kind)
    assert image_size(data, f"image/{kind}") == (30_000, 30_000)
    with pytest.raises(EngineError, match="30000 x 30000") as caught:
        decode_image(data)
    assert (caught.value.engine_code, caught.value.transient) == ("too_large", False)


BROKEN: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "text": lambda: b"I am no picture\n" * 20,
    "sound": lambda: b"RIFF\x24\0\0\0WAVEfmt " + bytes(40),
    "postscript": lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    "png cut in its header": lambda: picture(SCENE, "PNG")[:18],
    "png cut in its pixels": lambda: picture(SCENE, "PNG")[:-60],
    "png of no pixels": lambda: picture(SCENE, "PNG")[:16] + bytes(8) + picture(SCENE, "PNG")[24:],
    "png with a wrong sum": lambda: picture(SCENE, "PNG")[:-20] + bytes(4) + picture(SCENE, "PNG")[-16:],
    "jpeg cut in its pixels": lambda: picture(SCENE, "JPEG")[:-300],
    "jpeg cut in its header": lambda: picture(SCENE, "JPEG")[:100],
    "webp cut": lambda: picture(SCENE, "WEBP")[:60],
    "gif cut": lambda: picture(SCENE, "GIF")[:800],
    "tiff cut": lambda: picture(SCENE, "TIFF")[:-100],
    "tiff whose directory is away": lambda: b"II*\0\xff\xff\xff\x7f" + bytes(50),
    "bmp cut": lambda: picture(SCENE, "BMP")[:200],
    "floats out of range": lambda: picture(np.full((4, 4), 2, np.float32), "TIFF"),
    "negative numbers": lambda: picture(np.full((4, 4), -2, np.int32), "TIFF"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_picture_is_told_so(name: str) -> None:
    with pytest.raises(EngineError) as caught:
        decode_image(BROKEN[name]())
    assert (caught.value.engine_code, caught.value.transient) == ("bad_image", False)


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")  # Pillow tells of broken metadata so
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_whatever_is_changed_in_a_file_it_is_pixels_or_a_typed_error(data: Any) -> None:
    kind = data.draw(st.sampled_from(["PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP"]))
    file = bytearray(picture(SCENE, kind))
    for _ in range(data.draw(st.integers(1, 4))):
        file[data.draw(st.integers(0, min(len(file) - 1, 200)))] = data.draw(st.integers(0, 255))
    assert decoded(bytes(file)) in ("pixels", "bad_image", "too_large")


def decoded(data: bytes) -> str:
    """ "pixels", or the code of the error."""
    try:
        pixels = decode_image(data, pixels=1_000_000)
    except EngineError as error:
        return error.engine_code
    return "pixels" if (pixels.ndim, pixels.shape[2], pixels.dtype) == (3, 3, np.uint8) else "something else"


def test_files_with_metadata_before_the_size() -> None:
    from PIL import Image

    thumbnail = picture(scene(8, 8), "JPEG")
    data = picture(SCENE, "JPEG", comment=b"x" * 60_000, exif=b"Exif\0\0" + thumbnail)
    assert image_size(data, "image/jpeg") == (64, 48)
    file = io.BytesIO()
    Image.fromarray(SCENE).save(file, "WEBP", exif=Image.Exif())
    assert image_size(file.getvalue(), "image/webp") == (64, 48)
