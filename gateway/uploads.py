"""Uploads: size checked while they arrive, kind told by content, spooled once before the request is accepted."""

from __future__ import annotations

import base64
import time
from typing import Any, Final

from broker.connection import Broker
from broker.lifetimes import fact_ttl
from broker.uploads import Spool
from cornstalk.errors import BadInput, TooLarge, UnsupportedMedia
from cornstalk.large import Spooled
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
        """An upload for a field declared `hint`: the bytes of a file part, or a base64 data URL in text.

        Raises TooLarge, UnsupportedMedia, BadInput, each naming the field, what was expected and what came.
        """
        data = value if isinstance(value, bytes) else _from_data_url(field, value)
        if not data:
            raise BadInput("expected a file, got an empty one (0 bytes)", field)
        if len(data) > LIMIT:
            raise TooLarge(f"expected at most {LIMIT} bytes, got {len(data)}", field)
        media_type = sniff(data)
        expected = media_of(hint)
        if expected and not media_type.startswith(f"{expected}/"):
            raise UnsupportedMedia(f"expected {expected} (by its content), got {media_type}", field)
        return await self._spool.put(data, media_type, ttl=fact_ttl(deadline), deadline=time.time() + SPOOL_WAIT)

    async def store(self, large: Spooled, deadline: float) -> None:
        """The large values of an input."""
        for mark, data in large.items():
            await self._spool.put(data, mark.media_type, ttl=fact_ttl(deadline), deadline=time.time() + SPOOL_WAIT)


def _from_data_url(field: str, value: Any) -> bytes:
    if not isinstance(value, str) or not value.startswith("data:"):
        got = repr(value[:20]) if isinstance(value, str) else type(value).__name__
        raise BadInput(f'expected a file part or a data URL ("data:audio/wav;base64,..."), got {got}', field)
    head, comma, body = value.partition(",")
    if not comma or not head.endswith(";base64"):
        raise BadInput(f"expected a data URL in base64, data:<type>;base64,<bytes>, got {head[:40]!r}", field)
    if len(body) > LIMIT * 4 // 3 + 4:
        raise TooLarge(f"expected at most {LIMIT} bytes, got more", field)
    try:
        return base64.b64decode(body, validate=True)
    except ValueError as error:
        raise BadInput(f"expected base64: {error}", field) from error
