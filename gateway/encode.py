"""Values as clients get them: JSON in which bytes are base64, structs objects, a file the digest that names it.

JSON has no number for what is none: those floats have their names, which a field of floats takes in a request too.
"""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec

from cornstalk.messages import Upload

NO_NUMBERS: Final = ("NaN", "Infinity", "-Infinity")


def _hook(value: Any) -> Any:
    if isinstance(value, Upload):
        return {"upload": value.digest}  # as a request may name it
    raise TypeError(f"a {type(value).__name__} cannot be told to a client")


_encoder = msgspec.json.Encoder(enc_hook=_hook)


def to_json(value: Any) -> bytes:
    """Raises TypeError for what has no such form."""
    encoded = _encoder.encode(value)
    if b"null" in encoded:  # as which the encoder writes what is no number
        encoded = _encoder.encode(_named(msgspec.to_builtins(value, enc_hook=_hook, str_keys=True)))
    return encoded


def _named(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _named(member) for key, member in value.items()}
    return [_named(member) for member in value] if isinstance(value, (list, tuple)) else value
