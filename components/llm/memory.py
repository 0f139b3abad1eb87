"""Keys and values of one sequence: what a decoder remembers of the tokens so far."""

from __future__ import annotations

from typing import Any


class Memory:
    """Room for `capacity` tokens, filled from the front; unused pages cost nothing. Gone with the sequence.

    A layer gets its room when it first stores something, for models differ in what their layers keep.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._layers: dict[int, tuple[Any, Any]] = {}

    @property
    def layers(self) -> int:
        """How many have stored something."""
        return len(self._layers)

    def extend(self, layer: int, start: int, keys: Any, values: Any) -> tuple[Any, Any]:
        """Stores n tokens [n, heads, size] from position `start`; views of all so far [1, heads, start + n, size]."""
        end = start + keys.shape[0]
        if layer not in self._layers:
            self._layers[layer] = self._room(keys), self._room(values)
        mine, theirs = self._layers[layer]
        mine[0, :, start:end] = keys.transpose(0, 1)
        theirs[0, :, start:end] = values.transpose(0, 1)
        return mine[:, :, :end], theirs[:, :, :end]

    def _room(self, like: Any) -> Any:
        _tokens, heads, size = like.shape
        return like.new_empty(1, heads, self._capacity, size)
