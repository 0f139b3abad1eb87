"""Element types and sizes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sidecar.dtypes import name_of, nbytes_of
from sidecar.errors import Denied


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        ("float32", "float32"),
        (np.float16, "float16"),
        (np.dtype("<i8"), "int64"),
        (bool, "bool"),
        (torch.bfloat16, "bfloat16"),
        (torch.half, "float16"),
        ("bfloat16", "bfloat16"),
    ],
)
def test_names(dtype: object, name: str) -> None:
    assert name_of(dtype) == name


@pytest.mark.parametrize("dtype", ["object", ">f4", "U5", "nonsense", np.dtype([("a", "i4")]), torch.qint8, None])
def test_what_may_not_travel(dtype: object) -> None:
    if dtype is None:
        dtype = "datetime64[s]"
    with pytest.raises(Denied):
        name_of(dtype)


def test_sizes() -> None:
    assert nbytes_of("bfloat16", (3, 5)) == 30
    assert nbytes_of("float64", ()) == 8
    assert nbytes_of("float64", (0, 7)) == 0


@pytest.mark.parametrize("shape", [(1 << 20, 1 << 20, 4), (1 << 41,), (-1,), (1,) * 9])
def test_shapes_out_of_bounds(shape: tuple[int, ...]) -> None:
    with pytest.raises(Denied):
        nbytes_of("float32", shape)
