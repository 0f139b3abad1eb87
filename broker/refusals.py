"""JetStream's error numbers, and which error of this package each one is."""

from __future__ import annotations

from typing import Final

import msgspec

from broker.errors import BrokerError, Conflict, PayloadTooLarge, QueueFull, Rejected, StorageFull

WRONG_LAST_SEQUENCE: Final = 10071
WRITE_IN_FLIGHT: Final = 10164
DUPLICATE_IN_PROCESS: Final = 10158
STREAM_FULL: Final = 10077
STORAGE_FULL: Final = (10023, 10028, 10047)
MESSAGE_TOO_LARGE: Final = 10054
UNAVAILABLE: Final = 10008
NO_MESSAGE: Final = 10037
CANNOT_DELETE: Final = 10057
"""Also when there is no such message any more."""
STREAM_NOT_FOUND: Final = 10059
CONSUMER_NOT_FOUND: Final = 10014

TRANSIENT: Final = (DUPLICATE_IN_PROCESS, UNAVAILABLE)
"""Nothing was stored, and the same message may be stored a moment later."""


class ApiError(msgspec.Struct):
    """The error of a JetStream answer."""

    code: int
    err_code: int = 0
    description: str = ""


def refusal(what: str, error: ApiError) -> BrokerError:
    """The error to raise. `what` names the kind of subject or request, without anybody's ids."""
    text = f"{what}: {error.description}"
    match error.err_code:
        case code if code in (WRONG_LAST_SEQUENCE, WRITE_IN_FLIGHT):
            return Conflict(code, text)
        case code if code == STREAM_FULL:
            return QueueFull(text)
        case code if code in STORAGE_FULL:
            return StorageFull(text)
        case code if code == MESSAGE_TOO_LARGE:
            return PayloadTooLarge(text)
        case code:
            return Rejected(code, text)
