"""The seam between the worker loop and an engine: what an engine is given for one item, and what it implements."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import numpy as np

from cornstalk.errors import EngineError

Piece = str | bytes | list[Any]
"""One piece of a stream output; pieces of one output add up. Of a stream of tensors a list of arrays."""


class Cancelled(Exception):
    """Raised inside an engine when nobody wants the item any more. Let it pass; the worker ends the item."""

    def __init__(self, reason: str = "cancelled") -> None:
        super().__init__(reason)
        self.reason = reason


class Block(Protocol):
    """Reserved output space in the arena. Leaving its context commits it; an exception frees it."""

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """Writable."""


class StreamInput(Protocol):
    """A stream input: pieces in stored order, each once, whichever attempt of the producer wrote them."""

    def __aiter__(self) -> AsyncIterator[Piece]: ...


class Call(Protocol):
    """One item. Lives on the event loop; `emit` and `tensor` must be awaited there, never from a thread."""

    request: str
    node: str
    gen: int
    attempt: str
    seed: int
    deadline: float  # Unix seconds
    inputs: dict[str, Any]
    """Values as they are; a tensor as a read-only numpy view; an upload as bytes; a stream input as StreamInput."""
    prior: dict[str, list[Piece]]
    """Stored pieces of earlier attempts, per stream output. Emit only what comes after, and never contradict them.

    Of a stream of tensors they are lists of what has just a `dtype` and a `shape`, and only those of this generation:
    tensors of a lost one are made again.
    """
    prior_tokens: dict[str, list[int]]
    """The tokens that `emit` was given with those pieces. A model is forced to them: never draw them anew."""
    cancelled: asyncio.Event
    tokens_in: int
    tokens_out: int

    def check(self) -> None:
        """Raises Cancelled if the item is not wanted any more. Safe from any thread; call it between steps."""

    async def emit(self, output: str, piece: Piece, tokens: Sequence[int] = ()) -> None:
        """The next piece of a stream output, stored within 30 ms with all tokens drawn since the piece before.

        Raises Cancelled, and LineageDiverged if an earlier generation of the node ended without it.
        """

    async def tensor(self, output: str, array: Any) -> None:
        """Copies a numpy array or torch tensor into the arena as a tensor output."""

    def reserve(self, output: str, shape: tuple[int, ...], dtype: str) -> AbstractAsyncContextManager[Block]:
        """Space for a tensor output that the engine writes itself, without a copy."""


class Engine(Protocol):
    """Runs items of one component. Constructed with its UnitTask; one per worker process; no state survives it.

    The engine of a task that is `cached` also says by what its outputs follow from its inputs (`components/recall.py`).
    """

    slots: int
    """Items at once: the credits of the worker."""

    async def start(self) -> None:
        """Loads weights, off the event loop. Raises SetupError when something is missing on this machine."""

    async def run(self, call: Call) -> dict[str, Any]:
        """The plain value outputs of one item. Raises EngineError (this item cannot be done) or Cancelled."""

    async def stop(self) -> None:
        """Frees what start() took. Running items were ended before."""

    def stats(self) -> dict[str, float]:
        """`batch` (items of the last step) and `longest_step_s` since start, for those who watch."""


__all__ = ["Block", "Call", "Cancelled", "Engine", "EngineError", "Piece", "StreamInput"]
