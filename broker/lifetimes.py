"""How long stored things outlive the deadline of their request (design rule 8 and section 7)."""

from __future__ import annotations

import time
from typing import Final

FACT_GRACE: Final = 600.0
"""Seconds that facts and chunks are kept past the deadline; also the life of a tombstone."""
BLOCK_GRACE: Final = 60.0
"""Seconds that tensors are kept past the deadline when nobody released them."""


def fact_ttl(deadline: float) -> float:
    """Seconds a fact or chunk of a request with this deadline (Unix seconds) is kept from now on."""
    return max(0.0, deadline - time.time()) + FACT_GRACE
