"""Ids that follow from what they stand for: whoever computes one, whenever, gets the same."""

from __future__ import annotations

import hashlib


def hashed_id(*parts: str) -> str:
    """32 hex digits of blake2b-128 over the parts, with a NUL between two.

    A request with an Idempotency-Key: of tenant, app and key. A batch job: the same. A row of it: of job and number.
    """
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()
