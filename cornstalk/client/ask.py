"""One request as a client makes it: what it asks, of which app, under which conditions."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from cornstalk.client.fields import Body, body_of, has_files

DEADLINE: Final = 120.0
"""Seconds that a request has unless it asks for more or less."""
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
        return f"/apps/{quote(self.app, safe='')}"

    @property
    def has_files(self) -> bool:
        """Whether reading the body may block."""
        return has_files(self.fields)

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


def new_key() -> str:
    """An idempotency key that no other request has."""
    return secrets.token_hex(16)
