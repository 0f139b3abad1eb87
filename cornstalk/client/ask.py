"""One request as a client makes it: what it asks, of which app, under which conditions."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote

from cornstalk.client.fields import Body, body_of, content, files, has_files, with_files
from cornstalk.extensions import Upload

DEADLINE: Final = 120.0
"""Seconds that a request has unless it asks for more or less."""
LARGE: Final = 4 << 20
"""Bytes from which on a file is sent apart from its request. Smaller ones are rather sent again than asked for."""
GRACE: Final = 10.0
"""Seconds for which a request goes on when its client was cut off."""


@dataclass(frozen=True)
class Ask:
    """A request that may be sent several times and is run once: each time under the same key."""

    app: str
    fields: Mapping[str, Any]
    key: str
    deadline: float  # seconds from when it is first sent
    seed: int | None
    durable: bool
    resume_grace: float  # seconds
    tenant: str | None
    retry_refused: bool

    @property
    def path(self) -> str:
        return path_of(self.app)

    @property
    def has_files(self) -> bool:
        """Whether `read` has something to read."""
        return has_files(self.fields)

    def read(self) -> Ask:
        """With the bytes of its files, so that sending it again sends the same. Raises what `content` raises."""
        return replace(self, fields=with_files(self.fields, content))

    def large_files(self, from_: int) -> list[bytes]:
        """Those of at least so many bytes, once `read`."""
        return list({id(data): data for data in files(self.fields) if len(data) >= from_}.values())

    def with_upload(self, file: bytes, upload: Upload) -> Ask:
        """Names one of its files, which was sent apart."""
        return replace(self, fields=with_files(self.fields, lambda _, one: upload if one is file else one))

    def without(self, fields: Set[str]) -> Ask:
        """Without these fields, which are said otherwise."""
        return replace(self, fields={name: value for name, value in self.fields.items() if name not in fields})

    def later(self, seconds: float) -> Ask:
        """With the time that is left."""
        return replace(self, deadline=max(0.001, self.deadline - seconds)) if self.deadline > 0 else self

    def body(self) -> Body:
        """Raises what `body_of` raises."""
        return body_of(self.fields)

    def headers(self, left: float) -> dict[str, str]:
        """`left`: seconds to the deadline."""
        headers = {
            "Accept": "text/event-stream",
            "Idempotency-Key": self.key,
            "Cornstalk-Deadline": f"{left:.9g}",
            "Cornstalk-Resume-Grace": f"{self.resume_grace:g}",
        }
        if self.seed is not None:
            headers["Cornstalk-Seed"] = str(self.seed)
        if self.durable:
            headers["Cornstalk-Durable"] = "true"
        if self.tenant is not None:
            headers["Cornstalk-Tenant"] = self.tenant
        return headers


def path_of(app: str) -> str:
    return f"/apps/{quote(app, safe='')}"


def new_key() -> str:
    """An idempotency key that no other request has."""
    return secrets.token_hex(16)
