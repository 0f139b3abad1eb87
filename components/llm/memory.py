"""Keys and values of one sequence: what a decoder remembers of the tokens so far."""

from __future__ import annotations

from typing import Any


class Memory:
    """Room for `capacity` tokens, filled from the front; unused pages cost nothing. Gone with the sequence."""

    def __init__(self, layers: int, heads: int, capacity: int, size: int, dtype: Any) -> None:
        import torch

        shape = (layers, 1, heads, capacity, size)
        self._keys, self._values = torch.empty(shape, dtype=dtype), torch.empty(shape, dtype=dtype)

    def extend(self, layer: int, start: int, keys: Any, values: Any) -> tuple[Any, Any]:
        """Stores n tokens [n, heads, size] from position `start`; views of all so far [1, heads, start + n, size]."""
        end = start + keys.shape[0]
        mine, theirs = self._keys[layer], self._values[layer]
        mine[0, :, start:end] = keys.transpose(0, 1)
        theirs[0, :, start:end] = values.transpose(0, 1)
        return mine[:, :, :end], theirs[:, :, :end]
