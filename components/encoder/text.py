"""The engine of text encoders: tokens through a model of transformers, pooled as sentence-transformers says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from components import models
from components.engine import Call
from components.fingerprint import fingerprint
from components.halves import device_of, dtype_of
from components.loaded import Batched
from components.windowed import WindowedBatch
from cornstalk.errors import EngineError, SetupError
from cornstalk.tasks.embedding import TextEncoder

POOLINGS: Final = {
    "pooling_mode_cls_token": "first",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
"""By the name that sentence-transformers has for it."""
_UNREADABLE: Final = (OSError, ValueError, KeyError, TypeError, RuntimeError, AttributeError)


class Recipe:
    """What a folder says of how its vectors are made: modules, pooling, prompts, longest text. Raises SetupError."""

    def __init__(self, folder: Path) -> None:
        modules = _read(folder / "modules.json")
        if not isinstance(modules, list):
            raise SetupError(
                f"{folder} has no modules.json, in which sentence-transformers says how vectors are pooled"
            )
        steps = {str(module["type"]).rpartition(".")[2]: str(module["path"]) for module in modules}
        if not {"Transformer", "Pooling"} <= steps.keys() <= {"Transformer", "Pooling", "Normalize"}:
            raise SetupError(
                f"{folder} is made of {', '.join(steps)}: what runs is a Transformer, Pooling and Normalize"
            )
        pooling = _read(folder / steps["Pooling"] / "config.json") or {}
        ways = [name for name, on in pooling.items() if name.startswith("pooling_mode") and on]
        if len(ways) != 1 or ways[0] not in POOLINGS:
            raise SetupError(
                f"{folder} pools by {', '.join(ways) or 'nothing'}: what runs is one of {', '.join(POOLINGS)}"
            )
        settings = _read(folder / "config_sentence_transformers.json") or {}
        self.pooling = POOLINGS[ways[0]]
        self.normalizes = "Normalize" in steps
        self.weights = folder / steps["Transformer"]
        self.prompts: dict[str, str] = settings.get("prompts") or {}
        self.default: str = settings.get("default_prompt_name") or ""
        self.whole_prompt = bool(pooling.get("include_prompt", True))
        limits = _read(self.weights / "sentence_bert_config.json") or {}
        self.longest: int | None = limits.get("max_seq_length")


class TextEncoderEngine(Batched[TextEncoder, WindowedBatch[list[int], Any]]):
    """vector: the model's size, float32. Texts of equally many tokens share a step, so none is padded."""

    slots = 16
    identity = ""
    _model: Any
    _tokenizer: Any

    def load(self) -> None:
        from safetensors import SafetensorError
        from transformers import AutoModel, AutoTokenizer

        folder = models.embedding_model(self.task.model)
        self._recipe = Recipe(folder)
        self._device = device_of(self.task.device)
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(self._recipe.weights, local_files_only=True)
            model, told = AutoModel.from_pretrained(
                self._recipe.weights,
                dtype=dtype_of(self.task.dtype, self._device),
                use_safetensors=True,
                local_files_only=True,
                output_loading_info=True,
            )
        except (*_UNREADABLE, SafetensorError) as error:
            raise SetupError(f"{folder} cannot be loaded as a text encoder: {error}") from error
        if lacking := sorted(key for key in told["missing_keys"] if not key.startswith("pooler.")):  # not read here
            raise SetupError(f"{folder} lacks {len(lacking)} weights, such as {lacking[0]}")
        if len(self._tokenizer) - len(self._tokenizer.all_special_ids) < 2:  # transformers makes an empty one
            raise SetupError(f"{folder} holds no tokenizer: its vocabulary is missing")
        self._model = model.eval().to(self._device)
        places = getattr(self._model.config, "max_position_embeddings", None)
        self._context = min((n for n in (self._recipe.longest, places) if n), default=8192)
        self.identity = fingerprint([folder])
        self.batch = WindowedBatch("text encoder", self._vectors, self.slots)

    async def run(self, call: Call) -> dict[str, Any]:
        tokens = await self.off_loop(self._tokens, call.inputs["text"], call.inputs["prompt"])
        call.check()
        call.tokens_in = len(tokens)
        vector = await self.batch.do(tokens, len(tokens), call.check)
        return {"vector": vector, "tokens": len(tokens)}

    def _tokens(self, text: str, prompt: str) -> list[int]:
        """Raises EngineError: bad_input, too_long."""
        recipe = self._recipe
        name = prompt or recipe.default
        if name and name not in recipe.prompts:
            raise EngineError(
                f"no prompt {name!r}; there are {', '.join(sorted(recipe.prompts)) or 'none'}", "bad_input"
            )
        if name and not recipe.whole_prompt:
            raise EngineError(
                f"{self.task.model} leaves its prompts out of its vectors, which is not built", "bad_input"
            )
        tokens: list[int] = self._tokenizer(recipe.prompts.get(name, "") + text)["input_ids"]
        if not tokens:
            raise EngineError("a text without a token has no vector", "bad_input")
        if len(tokens) > self._context:
            raise EngineError(f"the text has {len(tokens)} tokens; this model takes {self._context}", "too_long")
        return tokens

    def _vectors(self, texts: Sequence[list[int]]) -> list[list[float]]:
        import torch

        with torch.inference_mode():
            ids = torch.tensor(texts, device=self._device)
            states = self._model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state.float()
            match self._recipe.pooling:
                case "first":
                    pooled = states[:, 0]
                case "last":
                    pooled = states[:, -1]
                case _:
                    pooled = states.mean(1)
            if self._recipe.normalizes:
                pooled = torch.nn.functional.normalize(pooled, dim=1)
            vectors: list[list[float]] = pooled.cpu().tolist()
            return vectors


def _read(path: Path) -> Any:
    """What a file of JSON holds; None if there is none. Raises SetupError."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise SetupError(f"{path} cannot be read: {error}") from error
