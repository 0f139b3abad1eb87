"""The text encoders of image and video generators: a prompt in, its embeddings out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from components import models
from components.diffusers_folder import DiffusersFolder
from components.engine import Call
from components.fingerprint import fingerprint
from components.halves import config_of, device_of, dtype_of, words
from components.loaded import Loaded
from cornstalk.errors import EngineError
from cornstalk.tasks.painting import PromptEncoder

ROWS: Final = 512
"""What Qwen-Image and Wan read of a prompt."""

Encode = Callable[[str], Any]
"""A prompt -> tensor [rows, size] on the CPU. Raises EngineError prompt_too_long."""


class PromptEngine(Loaded[PromptEncoder]):
    """One prompt at a time, so that its embeddings are bit for bit those of diffusers, whatever else is asked: of the
    work on an image this is the smallest part. Holds no state of any request.
    """

    slots = 8
    identity = ""
    _encode: Encode

    def load(self) -> None:
        import torch

        torch.set_num_threads(1)
        folder = DiffusersFolder(models.diffusion_model(self.task.model))
        self.identity = fingerprint([folder.path / "text_encoder", folder.path / "tokenizer"])
        device = device_of(self.task.device)
        self._encode = _ENCODERS[folder.family](folder, dtype_of(self.task.dtype, device), device)

    async def run(self, call: Call) -> dict[str, Any]:
        embeddings = await self.off_loop(self._embeddings, call)
        await call.tensor("embeddings", embeddings)
        return {}

    def _embeddings(self, call: Call) -> Any:
        import torch

        call.check()
        with self.step(), torch.inference_mode():
            return self._encode(call.inputs["prompt"]).contiguous().cpu()


def _clip(folder: DiffusersFolder, dtype: Any, device: str) -> Encode:
    """float [77, size] for any prompt."""
    from diffusers import StableDiffusionPipeline
    from transformers import CLIPTextModel, CLIPTokenizer

    tokenizer = folder.tokenizer(CLIPTokenizer)
    pipeline = StableDiffusionPipeline(
        vae=None,
        text_encoder=folder.part("text_encoder", CLIPTextModel, dtype=dtype).to(device),
        tokenizer=tokenizer,
        unet=None,
        scheduler=None,
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )

    def encode(prompt: str) -> Any:
        _fits(len(tokenizer(prompt).input_ids), tokenizer.model_max_length)
        return pipeline.encode_prompt(prompt, device, 1, False)[0][0]

    return encode


def _qwen(folder: DiffusersFolder, dtype: Any, device: str) -> Encode:
    """float [n, size], n up to 512: a row for each token of the prompt, and those that end its turn."""
    from diffusers import QwenImagePipeline
    from transformers import AutoTokenizer

    encoder = folder.path / "text_encoder"
    pipeline = QwenImagePipeline(
        scheduler=None,
        vae=None,
        text_encoder=words(encoder, config_of(encoder), dtype, device),
        tokenizer=folder.tokenizer(AutoTokenizer),
        transformer=None,
    )

    def encode(prompt: str) -> Any:
        text = pipeline.prompt_template_encode.format(prompt)
        read = len(pipeline.tokenizer(text).input_ids) - pipeline.prompt_template_encode_start_idx
        _fits(read, ROWS)
        return pipeline.encode_prompt(prompt, device, max_sequence_length=ROWS)[0][0]

    return encode


def _umt5(folder: DiffusersFolder, dtype: Any, device: str) -> Encode:
    """float [n, size], n up to 512: a row for each token."""
    from diffusers import WanPipeline
    from diffusers.pipelines.wan.pipeline_wan import prompt_clean
    from transformers import AutoTokenizer, UMT5EncoderModel

    tokenizer = folder.tokenizer(AutoTokenizer)
    pipeline = WanPipeline(
        tokenizer=tokenizer,
        text_encoder=folder.part("text_encoder", UMT5EncoderModel, dtype=dtype).to(device),
        vae=None,
        scheduler=None,
        transformer=None,
    )

    def encode(prompt: str) -> Any:
        read = len(tokenizer(prompt_clean(prompt)).input_ids)
        _fits(read, ROWS)
        whole, _ = pipeline.encode_prompt(
            prompt, do_classifier_free_guidance=False, max_sequence_length=ROWS, device=device
        )
        return whole[0, :read]  # the rest is zero

    return encode


def _fits(tokens: int, most: int) -> None:
    if tokens > most:
        raise EngineError(f"the prompt has {tokens} tokens; the model reads {most}", "prompt_too_long")


_ENCODERS: Final = {"StableDiffusionPipeline": _clip, "QwenImagePipeline": _qwen, "WanPipeline": _umt5}
