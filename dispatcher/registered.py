"""Records of the registry, as far as this release can read them."""

from __future__ import annotations

import logging
from typing import TypeVar

from broker.registry import Registry
from cornstalk.messages import Malformed, Message, NewerVersion, decode

log = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)


async def registered(kind: type[M], registry: Registry) -> dict[str, M]:
    """Every record of a bucket by key. Raises ReadTimeout."""
    entries = await registry.entries()
    return {key: record for key, e in entries.items() if (record := decoded(kind, key, e.data)) is not None}


def decoded(kind: type[M], key: str, data: bytes) -> M | None:
    """None for what does not decode, and for what a newer release wrote."""
    try:
        return decode(kind, data)
    except (Malformed, NewerVersion) as error:
        log.warning("record %s is left alone: %s", key, type(error).__name__)
        return None
