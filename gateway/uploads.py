"""Uploads: size checked while they arrive, kind told by content, spooled once before the request is accepted."""

from __future__ import annotations

import base64
import binascii
import time
from typing import Any, Final

from starlette.datastructures import UploadFile

from broker.connection import Broker
from broker.lifetimes import fact_ttl
from broker.uploads import Spool
from cornstalk.errors import BadInput, TooLarge, UnsupportedMedia
from cornstalk.media import media_of, sniff
from cornstalk.messages import Upload

LIMIT: Final = 64 * 1024 * 1024
"""Bytes of one upload."""
BODY_LIMIT: Final = 96 * 1024 * 1024
"""Bytes of a whole request body; base64 takes a third more than the bytes it carries."""
SPOOL_WAIT: Final = 20.0
"""Seconds that spooling one upload may take."""


class Uploads:
    """Puts bytes into the spool. Content-addressed: equal bytes are stored once, and a crash leaves no half."""

    def __init__(self, broker: Broker) -> None:
        self._spool = Spool(broker)

    async def take(self, field: str, hint: Any, value: Any, deadline: float) -> Upload:
        """An upload for a field declared `hint`: a file part, or a base64 data URL in JSON.

        Raises TooLarge, UnsupportedMedia, BadInput, each naming the field, what was expected and what came.
        """
        data = await value.read() if isinstance(value, UploadFile) else _from_data_url(field, value)
        if not data:
            raise BadInput("the file is empty (0 bytes)", field)
        if len(data) > LIMIT:
            raise TooLarge(f"{len(data)} bytes; an upload has at most {LIMIT}", field)
        media_type = sniff(data)
        expected = media_of(hint)
        if expected and not media_type.startswith(f"{expected}/"):
            raise UnsupportedMedia(f"expected {expected} (by its content), got {media_type}", field)
        return await self._spool.put(data, media_type, ttl=fact_ttl(deadline), deadline=time.time() + SPOOL_WAIT)


def _from_data_url(field: str, value: Any) -> bytes:
    if not isinstance(value, str) or not value.startswith("data:"):
        raise BadInput('expected a file part or a data URL ("data:audio/wav;base64,...")', field)
    head, comma, body = value.partition(",")
    if not comma or not head.endswith(";base64"):
        raise BadInput("a data URL must be base64: data:<type>;base64,<bytes>", field)
    if len(body) > LIMIT * 4 // 3 + 4:
        raise TooLarge(f"an upload has at most {LIMIT} bytes", field)
    try:
        return base64.b64decode(body, validate=True)
    except binascii.Error as error:
        raise BadInput(f"not base64: {error}", field) from error
