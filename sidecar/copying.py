"""Copies into a block: small ones at once, large ones by two threads, of which each takes the next part."""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import Future
from typing import Any, Final

import numpy as np

from sidecar.dtypes import BFLOAT16
from sidecar.mapper import Mapper
from sidecar.tensors import Block

LARGE: Final = 4 << 20
"""Bytes from which on a second thread saves more than it costs to wake it."""
INLINE: Final = 8 << 20
"""Bytes up to which the event loop takes part (under 1 ms): to be woken by others would cost it more."""
_PART: Final = 1 << 20
_LAST: Final = 0.5e-3
"""Seconds that the event loop waits without looking elsewhere for the last part of its helper."""


def copy(block: Block, source: Any) -> None:
    """From a numpy array or torch tensor, on any device, of the shape and dtype of the block."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(source, torch.Tensor):
        block.torch().copy_(source.detach())
        return
    target = block.array
    np.copyto(target, source.view(target.dtype) if block.dtype == BFLOAT16 else source)


async def copy_large(block: Block, source: Any, threads: Mapper) -> None:
    """The same, of LARGE bytes or more."""
    plain = _bytes_of(source)
    if plain is None:
        await threads.run(lambda: copy(block, source))
        return
    parts = _Parts(block.array.reshape(-1).view(np.uint8), plain)
    try:
        if plain.nbytes <= INLINE:
            helper = threads.begin(parts.take)
            parts.take()
            if not helper.cancel():  # that of a busy machine may not have begun
                await _ended(helper)
        else:
            await asyncio.gather(threads.run(parts.take), threads.run(parts.take))
    finally:
        parts.clear()


class _Parts:
    """Whoever calls `take` copies part after part until none is left. For threads: numpy copies without the GIL."""

    def __init__(self, target: np.ndarray[Any, Any], source: np.ndarray[Any, Any]) -> None:
        self._target: np.ndarray[Any, Any] | None = target
        self._source: np.ndarray[Any, Any] | None = source
        self._starts = iter(range(0, source.nbytes, _PART))

    def take(self) -> None:
        target, source = self._target, self._source
        if target is not None and source is not None:
            for start in self._starts:
                np.copyto(target[start : start + _PART], source[start : start + _PART])

    def clear(self) -> None:
        """No view of the memory stays behind in a thread."""
        self._starts = iter(())
        self._target = self._source = None


async def _ended(helper: Future[None]) -> None:
    try:
        helper.result(_LAST)
    except TimeoutError:
        await asyncio.wrap_future(helper)


def _bytes_of(source: Any) -> np.ndarray[Any, Any] | None:
    """uint8 [nbytes] of a tensor that lies in one piece in the memory of this host."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(source, torch.Tensor):
        if source.device.type != "cpu" or not source.is_contiguous():
            return None
        plain: np.ndarray[Any, Any] = source.detach().reshape(-1).view(torch.uint8).numpy()
        return plain
    return source.reshape(-1).view(np.uint8) if source.flags.c_contiguous else None
