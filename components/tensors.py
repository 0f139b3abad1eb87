"""Tensors of a stream on their way through the log: small ones travel themselves, of large ones the log holds a Ref."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from cornstalk.messages import Inline
from sidecar.dtypes import BFLOAT16, name_of, numpy_dtype

INLINE: Final = 8 << 10
"""Bytes up to which a tensor travels itself: a row of hidden states does, those of a prompt do not."""


def inline(tensor: Any) -> Inline:
    """Of a numpy array or torch tensor. Raises sidecar.errors.Denied for a dtype that may not travel."""
    name = name_of(tensor.dtype)
    if not isinstance(tensor, np.ndarray):
        import torch

        tensor = tensor.detach().cpu()
        tensor = (tensor.view(torch.uint16) if name == BFLOAT16 else tensor).numpy()
    return Inline(name, tuple(tensor.shape), np.ascontiguousarray(tensor).tobytes())


def array_of(tensor: Inline) -> np.ndarray[Any, Any]:
    """Read-only; bfloat16 as uint16, as a lease has it."""
    return np.frombuffer(tensor.data, numpy_dtype(tensor.dtype)).reshape(tensor.shape)


def torch_of(array: np.ndarray[Any, Any]) -> Any:
    """A torch copy of what an engine is given; uint16 is bfloat16, which numpy lacks."""
    import torch

    tensor = torch.from_numpy(np.array(array))
    return tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor
