"""Which tower sees for a model."""

from __future__ import annotations

from typing import Final

from components import models, qwen_omni
from components.encoder.gemma3 import Gemma3
from components.encoder.internvl import InternVL3
from components.encoder.llava_onevision import LlavaOneVision
from components.encoder.omni_eye import Qwen3Omni, Qwen25Omni
from components.encoder.qwen_vl import Qwen2VL, Qwen3VL, Qwen25VL
from components.encoder.tower import Tower
from components.halves import FAMILIES, config_of, device_of, dtype_of, same_tower
from cornstalk.errors import SetupError
from cornstalk.tasks.seeing import ImageEncoder

TOWERS: Final[dict[str, type[Tower]]] = {
    "qwen2_5_vl": Qwen25VL,
    "qwen2_vl": Qwen2VL,
    "qwen3_vl": Qwen3VL,
    "llava_onevision": LlavaOneVision,
    "internvl": InternVL3,
    "gemma3": Gemma3,
    "qwen2_5_omni": Qwen25Omni,
    "qwen3_omni_moe": Qwen3Omni,
}
"""By the model type of transformers."""
_NAMES: Final = FAMILIES | qwen_omni.FAMILIES


def towers_of(task: ImageEncoder) -> dict[str, Tower]:
    """By the model that they see for: the task's own, and its `adapters`, which share the weights of its tower.

    Raises SetupError for a folder without a model of a known family, and for an adapter of another tower.
    """
    device = device_of(task.device)
    dtype = dtype_of(task.dtype, device)
    folder = models.multimodal_model(task.model)
    config = config_of(folder)
    if config.model_type not in TOWERS:
        known = ", ".join(_NAMES[kind] for kind in TOWERS)
        raise SetupError(f"{task.model} is a {config.model_type}; there are vision towers of {known}")
    kind = TOWERS[config.model_type]
    if task.adapters and not kind.shares:
        raise SetupError(f"{_NAMES[config.model_type]} has its projector within its tower: it takes no adapters")
    first = kind(folder, config, dtype, device)
    towers = {task.model: first}
    for name in task.adapters:
        other = models.multimodal_model(name)
        theirs = config_of(other)
        same = (
            theirs.model_type == config.model_type and theirs.vision_config.to_dict() == config.vision_config.to_dict()
        )
        if not same or not same_tower(folder, other):
            raise SetupError(f"{name} sees with another tower than {task.model}: give it an ImageEncoder of its own")
        towers[name] = kind(other, theirs, dtype, device, first)
    return towers
