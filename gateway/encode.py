"""Values as clients get them: JSON in which bytes are base64, structs objects, a file the digest that names it."""

from __future__ import annotations

from typing import Any

import msgspec

from cornstalk.messages import Upload


def _hook(value: Any) -> Any:
    if isinstance(value, Upload):
        return {"upload": value.digest}  # as a request may name it
    raise TypeError(f"a {type(value).__name__} cannot be told to a client")


_encoder = msgspec.json.Encoder(enc_hook=_hook)


def to_json(value: Any) -> bytes:
    """Raises TypeError for what has no such form."""
    return _encoder.encode(value)
