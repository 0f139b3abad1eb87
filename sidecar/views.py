"""numpy and torch views of a span of a mapping, without copies, and the one object that dies with the last of them."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sidecar.arena import Mapping
from sidecar.dtypes import numpy_dtype

Root = ctypes.Array[ctypes.c_uint8]
"""All views of a span refer to one root: when it is collected, nothing here can touch the memory any more."""


def span(mapping: Mapping, offset: int, nbytes: int) -> Root:
    """The root of `nbytes` at `offset`; keeps the mapping alive. Raises ValueError outside of it."""
    if offset < 0 or nbytes < 0 or offset + nbytes > mapping.size:
        raise ValueError(f"{nbytes} bytes at {offset} are outside of the arena")
    root = (ctypes.c_uint8 * nbytes).from_address(mapping.address + offset)
    root.mapping = mapping  # type: ignore[attr-defined]
    return root


def as_numpy(root: Root, dtype: str, shape: Sequence[int], *, writable: bool) -> np.ndarray[Any, Any]:
    """bfloat16 comes as uint16. A read-only view cannot be made writable."""
    buffer = memoryview(root)
    # frombuffer, for an ndarray made directly refers to the root and could be made writable again
    flat = np.frombuffer(buffer if writable else buffer.toreadonly(), numpy_dtype(dtype))
    return flat if len(shape) == 1 else flat.reshape(tuple(shape))


def as_torch(root: Root, dtype: str, shape: Sequence[int]) -> Any:
    """A torch.Tensor. torch knows no read-only tensors: writing into one of a lease ends the process with SIGSEGV."""
    import torch

    kind = getattr(torch, dtype)
    if math.prod(shape) == 0:
        return torch.empty(tuple(shape), dtype=kind)
    return torch.frombuffer(root, dtype=kind).view(tuple(shape))
