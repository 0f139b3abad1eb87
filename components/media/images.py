"""Bytes of a picture -> pixels: PNG, JPEG, WebP, GIF, TIFF, BMP, of any depth and colour model."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from cornstalk.errors import BadInput, EngineError, TooLarge
from cornstalk.media import IMAGE_PIXELS, check_upload

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP")
"""No others are opened: some of Pillow's run programs, or are rarely tested."""

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


def decode_image(data: bytes, *, page: int = 0, pixels: int = IMAGE_PIXELS) -> Pixels:
    """RGB uint8 [h, w, 3], upright as its EXIF says, on white where it is transparent. `page`: also a frame of a GIF.

    16 bit and floats in 0..1 become 8 bit. Raises EngineError: too_large over `pixels`, told from the header; bad_page
    for a page that is not there; bad_image for what is no picture, or not a whole one.
    """
    with _opened(data, pixels) as image:
        if page:
            _turn_to(image, page, pixels)
        return np.asarray(_rgb(_upright(image)))


def count_pages(data: bytes, *, pixels: int = IMAGE_PIXELS) -> int:
    """Pages of a TIFF, frames of a GIF, WebP or PNG; else 1. Raises EngineError: bad_image, too_large."""
    with _opened(data, pixels) as image:
        # a second picture in a JPEG file is a preview or the other eye of the first
        return 1 if image.format == "MPO" else int(getattr(image, "n_frames", 1))


def picture_of(pictures: np.ndarray[Any, Any], page: int) -> Pixels:
    """One of n pictures uint8 [n, h, w, 3]. Raises EngineError: bad_image for other arrays, bad_page."""
    if pictures.dtype != np.uint8 or pictures.ndim != 4 or pictures.shape[3] != 3 or 0 in pictures.shape:
        raise EngineError(
            f"pictures are {pictures.dtype} {list(pictures.shape)}, not uint8 [n, height, width, 3]", "bad_image"
        )
    if not 0 <= page < len(pictures):
        raise EngineError(f"there is no picture {page} of {len(pictures)}", "bad_page")
    found: Pixels = pictures[page]
    return found


@contextmanager
def _opened(data: bytes, pixels: int) -> Iterator[Image]:
    """What Pillow raises is of many types, for it reads untrusted bytes: all of them become bad_image."""
    from PIL import Image

    try:
        check_upload(data, "image")
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            _check_pixels(image, pixels)
            yield image
    except EngineError:
        raise
    except TooLarge as error:
        raise EngineError(str(error), "too_large") from error
    except BadInput as error:
        raise EngineError(str(error), "bad_image") from error
    except Exception as error:
        said = str(error) or type(error).__name__
        raise EngineError(f"the picture cannot be read: {said}", "bad_image") from error


def _check_pixels(image: Image, pixels: int) -> None:
    if image.width * image.height > pixels:
        raise EngineError(f"the picture has {image.width} x {image.height} pixels; {pixels} can be read", "too_large")


def _turn_to(image: Image, page: int, pixels: int) -> None:
    try:
        if page < 0:
            raise EOFError
        image.seek(page)
    except EOFError:
        raise EngineError(f"the picture has no page {page}", "bad_page") from None
    _check_pixels(image, pixels)


def _upright(image: Image) -> Image:
    from PIL import ImageOps

    image.load()  # what is wrong with its pixels is said before what is wrong with its EXIF
    try:
        return ImageOps.exif_transpose(image)
    except (ValueError, TypeError, KeyError, SyntaxError, OSError):
        return image  # broken metadata is no reason to refuse the picture


def _rgb(image: Image) -> Image:
    from PIL import Image

    if image.mode.startswith(("I", "F")):
        return Image.fromarray(_eight_bit(np.asarray(image)), "L").convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        seen = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", seen.size, "white"), seen).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _eight_bit(gray: np.ndarray[Any, Any]) -> Pixels:
    """16 bit by its high byte, 32 bit integers by the bytes that they use, floats as parts of 1."""
    if gray.dtype.kind == "f":
        if not ((gray >= 0) & (gray <= 1)).all():
            raise EngineError("the picture has floats that are not within 0 and 1", "bad_image")
        return np.asarray(np.rint(gray * 255), np.uint8)
    if gray.dtype.kind == "i" and (gray < 0).any():
        raise EngineError("the picture has pixels below 0", "bad_image")
    wide = gray.dtype.itemsize > 2 and int(gray.max(initial=0)) > 0xFFFF
    return np.asarray(gray >> (24 if wide else 8), np.uint8)
