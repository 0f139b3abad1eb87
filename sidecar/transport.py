"""The seam to other hosts: how a tensor that another sidecar holds would come here. Within a host nothing is moved."""

from __future__ import annotations

from typing import Protocol

from sidecar.errors import NodeLost
from sidecar.messages import Tensor


class Transport(Protocol):
    """Pull, never push: the reader's daemon fetches into an arena of its own and publishes after the last byte."""

    async def pull(self, tensor: Tensor, wait: float) -> Tensor:
        """The header of a whole local copy. Raises NodeLost, Gone, Full or Timeout within `wait` seconds."""
        ...


class OneHost:
    """The transport of a single machine: every other host is out of reach."""

    async def pull(self, tensor: Tensor, wait: float) -> Tensor:
        raise NodeLost(f"the tensor lies on host {tensor.host!r}; this sidecar has no way to other hosts")
