"""One half of a multimodal model in a Hugging Face folder: its eyes (vision tower and projector), or its words.

Only the tensors of that half are read: the files of the other one need not be there, and its weights take no memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from cornstalk.errors import SetupError

FAMILIES: Final = {
    "qwen2_5_vl": "Qwen2.5-VL",
    "qwen2_vl": "Qwen2-VL",
    "qwen3_vl": "Qwen3-VL",
    "llava_onevision": "LLaVA-OneVision",
    "internvl": "InternVL3",
    "gemma3": "Gemma 3",
}
"""Model types of transformers whose halves run apart, with the names that people know them by."""
_EYES: Final = re.compile(r"^(model\.)?(visual|vision_tower|multi_modal_projector|image_newline)\b")
_TOWER: Final = re.compile(r"^(model\.)?vision_tower\b")
_UNREADABLE: Final = (OSError, ValueError, KeyError, TypeError, RuntimeError, AttributeError)


def device_of(name: str) -> str:
    """The device of a task; "auto" is cuda where there is one. Raises SetupError for one that this machine lacks."""
    import torch

    found = torch.cuda.is_available()
    if name == "cuda" and not found:
        raise SetupError("no CUDA device is seen here: use device='auto', or run this worker where there is one")
    return ("cuda" if found else "cpu") if name == "auto" else name


def dtype_of(name: str, device: str) -> Any:
    """The torch dtype of a task; "auto" is bfloat16 where the device computes in it, else float32."""
    import torch

    if name == "auto":
        fast = torch.cuda.is_bf16_supported() if device == "cuda" else torch.cpu.get_capabilities().get("avx512_bf16")
        name = "bfloat16" if fast else "float32"
    return getattr(torch, name)


def config_of(folder: Path) -> Any:
    """The configuration. Raises SetupError when there is none, or transformers does not know its model."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True)
    except _UNREADABLE as error:
        raise SetupError(f"{folder} has no configuration that can be read: {error}") from error


def eyes(folder: Path, config: Any, dtype: Any, device: str, tower: Any = None) -> Any:
    """The model without its language model; `get_image_features` works. Raises SetupError.

    `tower`: the vision tower of another model, in place of one from this folder.
    """

    def keep(model: Any) -> None:
        del model.model.language_model, model.lm_head
        if tower is not None:
            del model.model.vision_tower

    def mine(name: str) -> bool:
        return bool(_EYES.match(name)) and not (tower is not None and _TOWER.match(name))

    half = _half(folder, config, dtype, device, keep, mine, _tied_weights_keys=None)
    if tower is not None:
        half.model.vision_tower = tower
    return half


def same_tower(one: Path, other: Path) -> bool:
    """Whether all weights of the tower that the other folder has, if any, are those of the one."""
    import torch

    mine = dict(tensors_of(one, _is_of_tower))
    theirs = tensors_of(other, _is_of_tower)
    return all(name in mine and torch.equal(mine[name], tensor) for name, tensor in theirs)


def _is_of_tower(name: str) -> bool:
    return bool(_TOWER.match(name))


def words(folder: Path, config: Any, dtype: Any, device: str) -> Any:
    """The model without its vision tower. Raises SetupError."""

    def keep(model: Any) -> None:
        for part in ("visual", "vision_tower", "multi_modal_projector", "image_newline"):
            if hasattr(model.model, part):
                delattr(model.model, part)
        model.model._is_hf_initialized = True  # or LLaVA's would be given a new image_newline

    return _half(folder, config, dtype, device, keep, lambda name: not _EYES.match(name))


def _half(
    folder: Path,
    config: Any,
    dtype: Any,
    device: str,
    keep: Callable[[Any], None],
    mine: Callable[[str], bool],
    **more: Any,
) -> Any:
    import torch
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    known = ", ".join(FAMILIES.values())
    if config.model_type not in FAMILIES:
        raise SetupError(f"{folder} holds a {config.model_type}, whose halves do not run apart; known are {known}")
    whole = getattr(transformers, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES[config.model_type])

    def build(self: Any, config: Any) -> None:
        whole.__init__(self, config)
        keep(self)

    # under the name of the whole: by that transformers finds what tensors are called in older folders
    half: Any = type(whole.__name__, (whole,), {"__init__": build, "__module__": whole.__module__, **more})
    try:
        tensors = dict(tensors_of(folder, mine))
        model, told = half.from_pretrained(
            None, config=config, state_dict=tensors, dtype=dtype, output_loading_info=True
        )
    except _UNREADABLE as error:
        raise SetupError(f"the weights in {folder} cannot be loaded: {error}") from error
    if lacking := sorted(told["missing_keys"] | {str(key) for key in told["mismatched_keys"]}):
        raise SetupError(f"{folder} lacks {len(lacking)} weights of its {config.model_type}, such as {lacking[0]}")
    torch.set_num_threads(1)
    return model.to(device).eval()


def tensors_of(folder: Path, mine: Callable[[str], bool]) -> Iterator[tuple[str, Any]]:
    """Name and tensor of those that are `mine`. safetensors alone: other files of weights may hold code. Raises
    SetupError.
    """
    for name, opened in _opened(folder, mine):
        yield name, opened.get_tensor(name)


def rows_of(folder: Path, name: str, rows: Sequence[int]) -> Any:
    """Some rows of one tensor, of which no more is read. Raises SetupError."""
    import torch

    for _, opened in _opened(folder, name.__eq__):
        whole = opened.get_slice(name)
        return torch.cat([whole[row : row + 1] for row in rows])
    raise SetupError(f"{folder} has no tensor {name}")


def _opened(folder: Path, mine: Callable[[str], bool]) -> Iterator[tuple[str, Any]]:
    """Each name that is `mine` with the file that holds its tensor."""
    from safetensors import SafetensorError, safe_open

    index = folder / "model.safetensors.index.json"
    if index.is_file():
        named: dict[str, str] = json.loads(index.read_bytes())["weight_map"]
        files = sorted({Path(file).name for name, file in named.items() if mine(name)})
    else:
        files = ["model.safetensors"]
    for file in files:
        try:
            with safe_open(folder / file, "pt") as opened:
                for name in filter(mine, opened.keys()):
                    yield name, opened
        except (OSError, SafetensorError) as error:
            raise SetupError(f"{folder / file} is missing, broken or not whole: {error}") from error
