"""Multimodal models in one piece, with the processors of transformers itself for text, pictures and videos.

Its video processors need torchvision, which is not there: what they call of it is here, by torch as it is there.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from components.media.images import Pixels
from tests.components.tiny_vl import FAMILIES, VIDEO_LIMITS, Family

_VISION: Final = "torchvision.transforms.v2.functional"


class Film(NamedTuple):
    """All frames of a video, uint8 [n, h, w, 3], and how many of them are shown in a second."""

    frames: np.ndarray[Any, Any]
    fps: float


class Sampling(NamedTuple):
    fps: float = 2.0
    most: int = 16


USUAL: Final = Sampling()
Shown = str | Pixels | Film


class WholeVL:
    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModelForImageTextToText, AutoTokenizer

        self.model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
        self.kind = self.model.config.model_type
        self.family = FAMILIES[self.kind]
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.processor = processor_of(self.family, self.kind, self.tokenizer)

    def says(self, content: Sequence[Shown], tokens: int, sampling: Sampling = USUAL) -> str:
        """The text of the likeliest tokens after one turn."""
        inputs = self.inputs(content, sampling)
        made = self.model.generate(**inputs, do_sample=False, max_new_tokens=tokens)
        answer: str = self.tokenizer.decode(made[0, inputs["input_ids"].shape[1] :])
        return answer

    def inputs(self, content: Sequence[Shown], sampling: Sampling) -> dict[str, Any]:
        if self.kind == "gemma3":  # it takes pictures alone
            content = [one for part in content for one in (_frames(part, sampling) if type(part) is Film else [part])]
        parts = [{"type": "text", "text": p} if isinstance(p, str) else {"type": _kind(p)} for p in content]
        text = self.tokenizer.apply_chat_template([{"role": "user", "content": parts}], tokenize=False)
        shown: dict[str, Any] = {}
        if images := [part for part in content if isinstance(part, np.ndarray)]:
            shown |= {"images": [images], "images_kwargs": self._images()}
        if films := [part for part in content if type(part) is Film]:
            shown |= self._films(films, sampling)
        made = self.processor(text=[text], return_tensors="pt", add_special_tokens=False, **shown)
        for unused in ("num_patches", "num_crops"):
            made.pop(unused, None)
        return dict(made)

    def _images(self) -> dict[str, Any]:
        more = {"crop_to_patches": True} if self.kind == "internvl" else {}
        return {"input_data_format": "channels_last", **more}

    def _films(self, films: Sequence[Film], sampling: Sampling) -> dict[str, Any]:
        import torch
        from transformers.video_utils import VideoMetadata

        told = [VideoMetadata(total_num_frames=len(film.frames), fps=film.fps) for film in films]
        more = {"cap_pixels_per_frame": False} if self.kind.startswith("qwen") else {}
        self.processor.video_processor.max_frames = sampling.most
        videos = [torch.from_numpy(film.frames).permute(0, 3, 1, 2) for film in films]
        wanted = {"do_sample_frames": True, "fps": sampling.fps, "video_metadata": told, **more}
        return {"videos": videos, "videos_kwargs": wanted}


def _kind(part: Pixels | Film) -> str:
    return "video" if type(part) is Film else "image"


def _frames(film: Film, sampling: Sampling) -> list[Pixels]:
    """Those that the processor of most families would choose."""
    found = video_processor("llava_onevision").sample_frames(_Told(len(film.frames), film.fps), fps=sampling.fps)
    return [film.frames[number] for number in found.tolist()]


class _Told(NamedTuple):
    total_num_frames: int
    fps: float


def video_processor(kind: str) -> Any:
    """As transformers makes it, with the numbers of the tiny models."""
    _without_torchvision()
    from transformers.models.internvl.video_processing_internvl import InternVLVideoProcessor
    from transformers.models.llava_onevision.video_processing_llava_onevision import LlavaOnevisionVideoProcessor
    from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

    own = FAMILIES[kind].processor()
    like = {"image_mean": own.image_mean, "image_std": own.image_std}
    if kind in ("qwen2_vl", "qwen2_5_vl"):
        return Qwen2VLVideoProcessor(patch_size=own.patch_size, size=dict(own.size), **like)
    if kind == "qwen3_vl":
        return Qwen3VLVideoProcessor(patch_size=own.patch_size, size=VIDEO_LIMITS, **like)
    base = InternVLVideoProcessor if kind == "internvl" else LlavaOnevisionVideoProcessor
    return base(size=dict(own.size), **like)


def processor_of(family: Family, kind: str, tokenizer: Any) -> Any:
    import transformers

    classes = {
        "qwen2_5_vl": "Qwen2_5_VLProcessor",
        "qwen2_vl": "Qwen2VLProcessor",
        "qwen3_vl": "Qwen3VLProcessor",
        "llava_onevision": "LlavaOnevisionProcessor",
        "internvl": "InternVLProcessor",
        "gemma3": "Gemma3Processor",
    }
    more: dict[str, Any] = {} if kind == "gemma3" else {"video_processor": video_processor(kind)}
    if kind == "llava_onevision":
        more |= {"num_image_tokens": 16, "vision_feature_select_strategy": "full"}
    if kind == "internvl":
        more |= {"image_seq_length": 4}
    if kind == "gemma3":
        more |= {"image_seq_length": 16}
    for name, token in family.names.items():
        setattr(tokenizer, name, token)
        setattr(tokenizer, f"{name}_id", tokenizer.convert_tokens_to_ids(token))
    whole = getattr(transformers, classes[kind])
    # it insists on classes that it only knows with torchvision
    free = type(whole.__name__, (whole,), {"check_argument_for_proper_class": lambda *_: None})
    return free(image_processor=family.processor(), tokenizer=tokenizer, **more)


def _without_torchvision() -> None:
    if _VISION in sys.modules:
        return
    import transformers.image_processing_backends as backends
    import transformers.video_processing_utils as videos

    for n in range(1, 5):
        name = ".".join(_VISION.split(".")[:n])
        module: Any = types.ModuleType(name)
        module.__spec__, module.__path__ = importlib.machinery.ModuleSpec(name, None), []
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
    functions: Any = sys.modules[_VISION]
    functions.grayscale_to_rgb = lambda video: video
    functions.normalize, functions.resize = _normalize, _resize
    functions.InterpolationMode = types.SimpleNamespace(BILINEAR="bilinear", BICUBIC="bicubic", LANCZOS="lanczos")
    videos.tvF = backends.tvF = functions
    backends.pil_torch_interpolation_mapping = dict.fromkeys(range(6), "bicubic")  # all of those here are


def _normalize(video: Any, mean: Any, std: Any, inplace: bool = False) -> Any:
    import torch

    mean, std = (torch.as_tensor(value).view(-1, 1, 1) for value in (mean, std))
    return (video - mean) / std


def _resize(video: Any, size: Any, interpolation: Any, antialias: bool = True) -> Any:
    from torch.nn.functional import interpolate

    flat = interpolate(video.flatten(0, -4), list(size), mode="bicubic", antialias=antialias)
    return flat.unflatten(0, tuple(video.shape[:-3]))
