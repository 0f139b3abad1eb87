"""What a client may ask of a request beside its input: headers, checked one by one."""

from __future__ import annotations

import math
import re
import secrets
import time
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from broker.subjects import token
from cornstalk.errors import BadInput
from cornstalk.ids import hashed_id
from cornstalk.messages import LONGEST_DEADLINE, Lane

DEADLINE: Final = 120.0
"""Seconds an interactive request has unless it asks for more or less."""
LONGEST_GRACE: Final = 600.0
"""Seconds a client may be away at most before its request is cancelled."""
LONGEST_KEY: Final = 255
"""Characters of an Idempotency-Key."""

_TRACEPARENT: Final = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}\Z")


class Options(Struct, frozen=True, kw_only=True):
    """How a request is to be run."""

    request: str  # 128 random bits, or a hash of tenant, app and Idempotency-Key
    idempotent: bool
    tenant: str
    lane: Lane
    durable: bool
    deadline: float  # Unix seconds
    resume_grace: float  # seconds
    seed: int
    trace: str  # W3C traceparent


def read_options(app: str, headers: Mapping[str, str]) -> Options:
    """From request headers. Raises BadInput that names the header."""
    tenant = headers.get("cornstalk-tenant", "default")
    try:
        token(tenant)
    except ValueError as error:
        raise BadInput(str(error), "Cornstalk-Tenant") from error
    key = _key(headers)
    seconds = _seconds(headers, "Cornstalk-Deadline", DEADLINE, LONGEST_DEADLINE)
    if seconds <= 0:
        raise BadInput("expected seconds from now, above 0, got a deadline that has passed", "Cornstalk-Deadline")
    return Options(
        request=secrets.token_hex(16) if key is None else hashed_id(tenant, app, key),
        idempotent=key is not None,
        tenant=tenant,
        lane=_lane(headers),
        durable=_flag(headers, "Cornstalk-Durable"),
        deadline=time.time() + seconds,
        resume_grace=_seconds(headers, "Cornstalk-Resume-Grace", 0.0, LONGEST_GRACE),
        seed=_seed(headers),
        trace=traceparent(headers.get("traceparent", "")) or _new_trace(),
    )


_NAMES: Final = {
    "idempotency_key": "Idempotency-Key",
    "traceparent": "traceparent",
    **{n.lower(): f"Cornstalk-{n}" for n in ("Tenant", "Lane", "Durable", "Deadline", "Seed")},
    "resume_grace": "Cornstalk-Resume-Grace",
}


def frame_options(app: str, given: Mapping[str, Any]) -> Options:
    """From the `options` of a frame, by the rules of the headers. Raises BadInput that names the option."""
    headers: dict[str, str] = {}
    for name, value in given.items():
        if name not in _NAMES:
            raise BadInput(f"no such option; there are {', '.join(_NAMES)}", f"options.{name[:40]}")
        if not isinstance(value, (str, int, float)):
            raise BadInput(f"expected text, a number or a bool, got {type(value).__name__}", f"options.{name}")
        headers[_NAMES[name].lower()] = str(value).lower() if isinstance(value, bool) else str(value)
    try:
        return read_options(app, headers)
    except BadInput as error:
        name = next((n for n, header in _NAMES.items() if header == error.field), error.field)
        raise BadInput(str(error).removeprefix(f"{error.field}: "), f"options.{name}") from error


def _key(headers: Mapping[str, str]) -> str | None:
    key = headers.get("idempotency-key")
    if key is not None and not 1 <= len(key) <= LONGEST_KEY:
        raise BadInput(f"expected 1 to {LONGEST_KEY} characters, got {len(key)}", "Idempotency-Key")
    return key


def traceparent(given: str) -> str:
    """The W3C trace context of a client; "" if it is not valid, which makes a new one, as the standard asks."""
    return given if _TRACEPARENT.match(given) else ""


def _new_trace() -> str:
    return f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"


def _seconds(headers: Mapping[str, str], name: str, default: float, most: float) -> float:
    text = headers.get(name.lower())
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError as error:
        raise BadInput(f"expected seconds as a number, got {text[:40]!r}", name) from error
    if not math.isfinite(value):
        raise BadInput(f"expected a finite number of seconds, got {text[:40]!r}", name)
    if value > most:
        raise BadInput(f"expected at most {most:.0f} seconds, got {value:g}", name)
    if value < 0:
        raise BadInput(f"expected seconds from now, got {text[:40]!r}", name)
    return value


def _lane(headers: Mapping[str, str]) -> Lane:
    lane = headers.get("cornstalk-lane", "interactive")
    if lane not in ("interactive", "batch"):
        raise BadInput(f"expected interactive or batch, got {lane[:40]!r}", "Cornstalk-Lane")
    return "batch" if lane == "batch" else "interactive"


def _flag(headers: Mapping[str, str], name: str) -> bool:
    text = headers.get(name.lower(), "false").lower()
    if text not in ("true", "false"):
        raise BadInput(f"expected true or false, got {text[:40]!r}", name)
    return text == "true"


def _seed(headers: Mapping[str, str]) -> int:
    text = headers.get("cornstalk-seed")
    if text is None:
        return secrets.randbits(31)
    try:
        seed = int(text)
    except ValueError as error:
        raise BadInput(f"expected an integer, got {text[:40]!r}", "Cornstalk-Seed") from error
    if not 0 <= seed < 2**63:
        raise BadInput(f"expected an integer from 0 to 2^63 - 1, got {text[:40]}", "Cornstalk-Seed")
    return seed
