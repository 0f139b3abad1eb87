"""Uploads: size checked while they arrive, kind told by content, spooled once before the request is accepted."""

from __future__ import annotations

import base64
import re
import time
from typing import Any, Final

from broker.connection import Broker
from broker.errors import UploadGone
from broker.lifetimes import fact_ttl
from broker.uploads import Spool
from cornstalk.errors import BadInput, TooLarge
from cornstalk.large import Spooled
from cornstalk.media import check_upload, media_of, sniff
from cornstalk.messages import Upload
from cornstalk.uploads import LIMIT

BODY_LIMIT: Final = 96 * 1024 * 1024
"""Bytes of a whole request body; base64 takes a third more than the bytes it carries."""
SPOOL_WAIT: Final = 20.0
"""Seconds that spooling one upload may take."""
KEPT: Final = 3600.0
"""Seconds that an upload waits for a request that names it."""
DIGEST: Final = re.compile("[0-9a-f]{64}")
"""blake2b-256, as `b2sum -l 256` prints it."""


class Uploads:
    """Puts bytes into the spool. Content-addressed: equal bytes are stored once, and a crash leaves no half."""

    def __init__(self, broker: Broker) -> None:
        self._spool = Spool(broker)

    async def take(self, field: str, hint: Any, value: Any, deadline: float) -> Upload:
        """An upload for a field declared `hint`: the bytes of a file part; in JSON a data URL, base64, or
        {"upload": digest} for what was sent before.

        Raises TooLarge, UnsupportedMedia, BadInput, each naming the field, what was expected and what came.
        """
        data = await self._bytes(field, value)
        if not data:
            raise BadInput("expected a file, got an empty one (0 bytes)", field)
        if len(data) > LIMIT:
            raise TooLarge(f"expected at most {LIMIT} bytes, got {len(data)}", field)
        media_type = check_upload(data, media_of(hint), field)
        return await self._spool.put(data, media_type, ttl=fact_ttl(deadline), deadline=time.time() + SPOOL_WAIT)

    async def keep(self, data: bytes) -> Upload:
        """An upload that no request names yet; it lives for KEPT seconds."""
        return await self._spool.put(data, sniff(data), ttl=KEPT, deadline=time.time() + SPOOL_WAIT)

    async def prolonged(self, upload: Upload) -> Upload:
        """A complete upload, with a life as `keep` gives it. Raises UploadGone."""
        return await self.keep(await self._spool.get(upload, timeout=SPOOL_WAIT))

    async def find(self, digest: str) -> Upload | None:
        """A complete upload."""
        return await self._spool.find(digest, deadline=time.time() + SPOOL_WAIT)

    async def store(self, large: Spooled, deadline: float) -> None:
        """The large values of an input."""
        for mark, data in large.items():
            await self._spool.put(data, mark.media_type, ttl=fact_ttl(deadline), deadline=time.time() + SPOOL_WAIT)

    async def _bytes(self, field: str, value: Any) -> bytes:
        match value:
            case bytes():
                return value
            case str() if value.startswith("data:"):
                return _from_data_url(field, value)
            case str() if (data := _from_base64(value)) is not None:
                return data
            case {"upload": str(digest)} if len(value) == 1:
                return await self._kept(field, digest)
        got = repr(value[:20]) if isinstance(value, str) else type(value).__name__
        raise BadInput(
            'expected a file part or a data URL ("data:audio/wav;base64,..."), base64, or {"upload": digest}, '
            f"got {got}",
            field,
        )

    async def _kept(self, field: str, digest: str) -> bytes:
        missing = f"expected the digest of a complete upload, got {digest[:64]!r}: it was never ended, or has expired"
        upload = await self.find(digest) if DIGEST.fullmatch(digest) else None
        if upload is None:
            raise BadInput(missing, field)
        try:
            return await self._spool.get(upload, timeout=SPOOL_WAIT)
        except UploadGone as error:
            raise BadInput(missing, field) from error


def _from_data_url(field: str, value: str) -> bytes:
    head, comma, body = value.partition(",")
    if not comma or not head.endswith(";base64"):
        raise BadInput(f"expected a data URL in base64, data:<type>;base64,<bytes>, got {head[:40]!r}", field)
    if len(body) > LIMIT * 4 // 3 + 4:
        raise TooLarge(f"expected at most {LIMIT} bytes, got more", field)
    try:
        return base64.b64decode(body, validate=True)
    except ValueError as error:
        raise BadInput(f"expected base64: {error}", field) from error


def _from_base64(value: str) -> bytes | None:
    """None for "" and for what is none: a path, an address."""
    try:
        return base64.b64decode(value, validate=True) or None
    except ValueError:
        return None
