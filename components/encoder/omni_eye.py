"""The vision towers of Qwen-Omni, which lie within its thinker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from components import qwen_omni
from components.encoder.qwen_vl import Qwen3VL, Qwen25VL
from components.encoder.tower import Tower


class _OfThinker(Tower):
    def _loaded(self, folder: Path, of: Tower | None) -> Any:
        whole, self.config = self.config, self.config.thinker_config
        return qwen_omni.eyes(folder, whole, self.dtype, self.device).model


class Qwen25Omni(_OfThinker, Qwen25VL):
    """As Qwen25VL: patches [p, 1176] -> embeddings [1, rows, columns, size]."""


class Qwen3Omni(_OfThinker, Qwen3VL):
    """As Qwen3VL: patches [p, 1536] -> embeddings [1 + layers, steps, rows, columns, size]. Frames of videos are
    chosen, scaled and timed as by Qwen25VL.
    """

    chosen = Qwen25VL.chosen
    _size = Qwen25VL._size
    _times = Qwen25VL._times
