"""A causal language model of transformers in a folder, whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cornstalk.errors import SetupError


def causal(folder: Path, _config: Any, dtype: Any, device: str) -> Any:
    """Raises SetupError for a folder without one, and for weights that are damaged, missing or of another shape:
    transformers would draw them by lot.
    """
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    try:
        # safetensors alone: other files of weights may hold code
        lm, told = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, use_safetensors=True, output_loading_info=True
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise SetupError(f"{folder} holds no language model that can be loaded: {error}") from error
    if lacking := sorted(told["missing_keys"]):
        raise SetupError(f"{folder} lacks {len(lacking)} weights of its {lm.config.model_type}, such as {lacking[0]}")
    return lm.to(device).eval()
