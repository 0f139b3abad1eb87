"""Files of every format that users send, made by the libraries themselves."""

from __future__ import annotations

import io
from fractions import Fraction
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def scene(height: int = 48, width: int = 64) -> Array:
    """RGB uint8 without sharp edges, so that lossy formats come near: each corner has its own colour."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    y, x = y / (height - 1), x / (width - 1)
    return np.stack([255 * x, 255 * y, 255 * (1 - (x + y) / 2)], axis=-1).round().astype(np.uint8)


def picture(pixels: Array, kind: str, mode: str = "", **options: Any) -> bytes:
    from PIL import Image

    image = Image.fromarray(pixels)
    file = io.BytesIO()
    (image.convert(mode) if mode else image).save(file, kind, **options)
    return file.getvalue()


def pages(*pixels: Array, kind: str = "TIFF", **options: Any) -> bytes:
    from PIL import Image

    first, *rest = [Image.fromarray(p) for p in pixels]
    file = io.BytesIO()
    first.save(file, kind, save_all=True, append_images=rest, **options)
    return file.getvalue()


def tone(hertz: float, rate: int, seconds: float = 1.0, channels: int = 1) -> Array:
    """float32 [n, channels], half of full scale."""
    wave = np.sin(2 * np.pi * hertz * np.arange(int(rate * seconds)) / rate).astype(np.float32) / 2
    return np.stack([wave] * channels, axis=1)


def sound(samples: Array, rate: int, kind: str = "WAV", subtype: str | None = None, **options: Any) -> bytes:
    """By libsndfile."""
    import soundfile

    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind, subtype=subtype, **options)
    return file.getvalue()


def encoded_sound(samples: Array, rate: int, container: str, codec: str, form: str = "fltp") -> bytes:
    """By FFmpeg."""
    import av

    file = io.BytesIO()
    with av.open(file, "w", format=container) as out:
        layout = {1: "mono", 2: "stereo", 6: "5.1"}[samples.shape[1]]
        stream = out.add_stream(codec, rate=rate, layout=layout)
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples.T), format="fltp", layout=layout)
        frame.sample_rate = rate
        resampler = av.AudioResampler(format=form, layout=layout, rate=rate)
        fifo = av.AudioFifo()
        for part in resampler.resample(frame):
            fifo.write(part)
        while part := fifo.read(stream.codec_context.frame_size or 1024) or fifo.read(partial=True):
            out.mux(stream.encode(part))
        out.mux(stream.encode(None))
    return file.getvalue()


def video(
    frames: list[Array],
    fps: int = 10,
    container: str = "mp4",
    codec: str = "libx264",
    form: str = "yuv420p",
    key: int = 5,
) -> bytes:
    """By FFmpeg, with a key frame every `key` frames."""
    import av

    file = io.BytesIO()
    with av.open(file, "w", format=container) as out:
        stream = out.add_stream(codec, rate=fps)
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt, stream.bit_rate = form, 4_000_000
        stream.codec_context.gop_size = key
        stream.codec_context.time_base = Fraction(1, fps)
        for number, pixels in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, fps)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return file.getvalue()


def turned(mp4: bytes, quarters: int) -> bytes:
    """The MP4 with a note that it is to be shown turned clockwise by quarters, as phones write it."""
    one = 1 << 16
    a, b = {1: (0, one), 2: (-one, 0), 3: (0, -one)}[quarters]
    matrix = [a, b, 0, -b, a, 0, 0, 0, 1 << 30]
    at = mp4.index(b"tkhd") + 4 + 40
    return mp4[:at] + b"".join(v.to_bytes(4, "big", signed=True) for v in matrix) + mp4[at + 36 :]
