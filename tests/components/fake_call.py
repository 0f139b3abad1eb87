"""A Call without a worker: real events in one process, collected for the test to look at."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from components.engine import Cancelled, Piece


class Space:
    """Output space in plain memory."""

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        self.array = np.empty(shape, dtype)


class FakeCall:
    """Implements components.engine.Call. `log` has what happened, in order: (output, piece)."""

    def __init__(
        self,
        *,
        seed: int = 1,
        prior: dict[str, list[Piece]] | None = None,
        prior_tokens: dict[str, list[int]] | None = None,
        **inputs: Any,
    ) -> None:
        self.request, self.node, self.gen, self.attempt = "r", "n", 0, "a"
        self.seed, self.deadline = seed, time.time() + 60
        self.inputs, self.prior, self.prior_tokens = inputs, prior or {}, prior_tokens or {}
        self.cancelled = asyncio.Event()
        self.tokens_in = self.tokens_out = 0
        self.log: list[tuple[str, Any]] = []
        self.tokens: list[tuple[int, ...]] = []  # beside each entry of log
        self.tensors: dict[str, np.ndarray[Any, Any]] = {}
        self.on_emit: Callable[[FakeCall], None] = lambda call: None

    def check(self) -> None:
        if self.cancelled.is_set():
            raise Cancelled

    async def emit(self, output: str, piece: Piece, tokens: Sequence[int] = ()) -> None:
        self.check()
        assert piece, "an empty piece was emitted"
        self.log.append((output, piece))
        self.tokens.append(tuple(tokens))
        self.on_emit(self)

    async def tensor(self, output: str, array: Any) -> None:
        self.check()
        copy = np.array(array.numpy() if hasattr(array, "numpy") else array)
        copy.setflags(write=False)
        self.tensors[output] = copy

    @asynccontextmanager
    async def reserve(self, output: str, shape: tuple[int, ...], dtype: str) -> AsyncIterator[Space]:
        self.check()
        space = Space(shape, dtype)
        yield space
        self.tensors[output] = space.array

    def pieces(self, output: str) -> list[Any]:
        return [piece for name, piece in self.log if name == output]

    def tokens_of(self, output: str) -> list[tuple[int, ...]]:
        """Beside each piece of an output."""
        return [tokens for (name, _), tokens in zip(self.log, self.tokens, strict=True) if name == output]

    @property
    def text(self) -> str:
        return "".join(self.pieces("text"))

    @property
    def audio(self) -> bytes:
        return b"".join(self.pieces("audio"))


class Pieces:
    """A stream input whose pieces are all there."""

    def __init__(self, *pieces: Piece) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[Piece]:
        for piece in self._pieces:
            yield piece
