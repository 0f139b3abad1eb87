"""Sound for tests, as a client sends it."""

from __future__ import annotations

import base64
import io
import os
import wave


def wav(seconds: float = 0.1) -> bytes:
    """A WAV file of noise that is like no other: 16 bit mono at 16 kHz."""
    data = io.BytesIO()
    with wave.open(data, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16_000)
        out.writeframes(os.urandom(int(16_000 * seconds) * 2))
    return data.getvalue()


def data_url(data: bytes, kind: str = "audio/wav") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
