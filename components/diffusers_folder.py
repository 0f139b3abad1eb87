"""A model as diffusers saves it: a folder for each of its parts, and model_index.json, which names the pipeline."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from cornstalk.errors import SetupError

FAMILIES: Final = {
    "StableDiffusionPipeline": "Stable Diffusion 1.x and 2.x",
    "QwenImagePipeline": "Qwen-Image",
    "WanPipeline": "Wan 2.1",
}
"""Pipelines of diffusers whose parts run apart, with the names that people know them by."""
T = TypeVar("T")


class DiffusersFolder:
    """Raises SetupError unless it holds a model of one of the `known` families. Parts are loaded one by one."""

    def __init__(self, path: Path, known: Mapping[str, str] = FAMILIES) -> None:
        self.path = path
        try:
            self._index: dict[str, Any] = json.loads((path / "model_index.json").read_bytes())
            self.family: str = self._index["_class_name"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SetupError(f"{path}/model_index.json cannot be read: {error}") from error
        if self.family not in known:
            names = ", ".join(f"{name} ({pipeline})" for pipeline, name in known.items())
            raise SetupError(f"{path} holds a {self.family}; known here are {names}")

    def setting(self, name: str) -> Any:
        """One of the whole pipeline; None if model_index.json says nothing of it."""
        return self._index.get(name)

    def part(self, name: str, kind: Any, **options: Any) -> Any:
        """The model in one of the folders, a `kind` of diffusers or transformers, without its gradients.

        Safetensors alone: other files of weights may hold code. Raises SetupError unless all of its weights are there.
        """
        from safetensors import SafetensorError

        where = self.path / name
        told: dict[str, Any]
        try:
            model, told = kind.from_pretrained(
                where, use_safetensors=True, local_files_only=True, output_loading_info=True, **options
            )
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, AttributeError, SafetensorError) as error:
            raise SetupError(f"{where} is missing, broken or not whole: {error}") from error
        if lacking := sorted({*told["missing_keys"], *map(str, told["mismatched_keys"])}):
            raise SetupError(f"{where} lacks {len(lacking)} weights, such as {lacking[0]}")
        return model.requires_grad_(False).eval()

    def scheduler(self) -> Any:
        """The scheduler that model_index.json names, whichever of diffusers it is. Raises SetupError."""
        import diffusers

        try:
            _, name = self._index["scheduler"]
            kind = getattr(diffusers, name) if name.endswith("Scheduler") else None
            return kind.from_pretrained(self.path / "scheduler", local_files_only=True)  # type: ignore[union-attr]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise SetupError(f"{self.path}/scheduler is missing or broken: {error}") from error

    def tokenizer(self, kind: Any) -> Any:
        """Raises SetupError."""
        try:
            return kind.from_pretrained(self.path / "tokenizer", local_files_only=True)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SetupError(f"{self.path}/tokenizer is missing or broken: {error}") from error
