"""Which tower sees for a model."""

from __future__ import annotations

from typing import Final

from components import models
from components.encoder.qwen_vl import Qwen25VL
from components.encoder.tower import Tower
from components.halves import FAMILIES, config_of, device_of, dtype_of
from cornstalk.errors import SetupError
from cornstalk.tasks.seeing import ImageEncoder

TOWERS: Final[dict[str, type[Tower]]] = {"qwen2_5_vl": Qwen25VL}
"""By the model type of transformers."""


def tower_of(task: ImageEncoder) -> Tower:
    """Raises SetupError for a folder without a model of a known family."""
    folder = models.multimodal_model(task.model)
    config = config_of(folder)
    if config.model_type not in TOWERS:
        known = ", ".join(FAMILIES[kind] for kind in TOWERS)
        raise SetupError(f"{task.model} is a {config.model_type}; there are vision towers of {known}")
    device = device_of(task.device)
    return TOWERS[config.model_type](folder, config, dtype_of(task.dtype, device), device)
