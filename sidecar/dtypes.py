"""The element types that may travel, and the one place where a shape is turned into bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from sidecar.errors import Denied

MAX_DIMENSIONS: Final = 8
MAX_BYTES: Final = 1 << 40

BFLOAT16: Final = "bfloat16"
"""numpy has no such type: its views are uint16, the torch views are real."""

_NUMPY: Final[dict[str, np.dtype[Any]]] = {
    name: np.dtype(name)
    for name in (
        "bool",
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
} | {BFLOAT16: np.dtype("uint16")}


_NAMES: Final = {dtype: name for name, dtype in _NUMPY.items() if name != BFLOAT16}


def name_of(dtype: Any) -> str:
    """The travelling name of a numpy or torch dtype, or of its name. Raises Denied for any that may not travel."""
    known = _NAMES.get(dtype) if isinstance(dtype, np.dtype) else None
    if known is not None:
        return known
    name = str(dtype).removeprefix("torch.")
    if name not in _NUMPY:
        try:
            native = np.dtype(dtype)
        except TypeError:
            raise Denied(f"tensors of {name[:40]!r} cannot travel") from None
        name = native.name
        if name not in _NUMPY or not native.isnative:
            raise Denied(f"tensors of {str(native)[:40]!r} cannot travel")
    return name


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The element type of numpy views. Raises Denied if `name` is not in the table."""
    dtype = _NUMPY.get(name)
    if dtype is None:
        raise Denied(f"unknown dtype {name[:40]!r}")
    return dtype


def nbytes_of(name: str, shape: Sequence[int]) -> int:
    """Bytes of a tensor. Raises Denied for a dtype, number of dimensions, dimension or product out of bounds."""
    if len(shape) > MAX_DIMENSIONS:
        raise Denied(f"{len(shape)} dimensions, at most {MAX_DIMENSIONS}")
    nbytes = numpy_dtype(name).itemsize
    for dimension in shape:
        if not 0 <= dimension <= MAX_BYTES:
            raise Denied(f"dimension {dimension} out of bounds")
    for dimension in shape:
        nbytes *= dimension
        if nbytes > MAX_BYTES:
            raise Denied("shape out of bounds")
    return nbytes
