"""Stable Diffusion 1.x and 2.x: a UNet that looks at an image with and without the prompt in one pass."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from components.diffusers_folder import DiffusersFolder
from components.generator.diffusion import Ask, Diffusion, Drawing
from cornstalk.errors import SetupError


class StableDiffusion(Diffusion):
    """Latents [1, channels, height / 8, width / 8], texts [77, size], both of the dtype of the weights."""

    guidance = 7.5

    def __init__(self, folder: DiffusersFolder, dtype: Any, device: str) -> None:
        from diffusers import AutoencoderKL, StableDiffusionPipeline, UNet2DConditionModel

        self._unet = folder.part("unet", UNet2DConditionModel, torch_dtype=dtype).to(device)
        if self._unet.config.time_cond_proj_dim is not None:
            raise SetupError(f"{folder.path} holds a distilled model, which takes the guidance: it is not known here")
        self._pipeline = StableDiffusionPipeline(  # it corrects settings of schedulers of old folders
            vae=folder.part("vae", AutoencoderKL, torch_dtype=dtype).to(device),
            text_encoder=None,
            tokenizer=None,
            unet=self._unet,
            scheduler=folder.scheduler(),
            safety_checker=None,
            feature_extractor=None,
            requires_safety_checker=False,
        )
        self.dtype, self.device = dtype, device
        self._scale: int = self._pipeline.vae_scale_factor
        self.draws = "generator" in inspect.signature(self._pipeline.scheduler.step).parameters
        sample = self._unet.config.sample_size
        self.side = (sample if isinstance(sample, int) else sample[0]) * self._scale
        self.text_size = self._unet.config.cross_attention_dim

    def begin(self, ask: Ask, check: Callable[[], None]) -> Drawing:
        import torch
        from diffusers.utils.torch_utils import randn_tensor

        scheduler = self._times(self._pipeline.scheduler, num_inference_steps=ask.steps)
        random = torch.Generator().manual_seed(ask.seed)
        shape = (1, self._unet.config.in_channels, ask.height // self._scale, ask.width // self._scale)
        noise = randn_tensor(shape, generator=random, device=torch.device(self.device), dtype=self.dtype)
        texts = ask.prompt.shape[0]
        return Drawing(ask, noise * scheduler.init_noise_sigma, scheduler, random, texts, check)

    def noise(self, drawings: Sequence[Drawing]) -> list[Any]:
        import torch

        guided = [drawing for drawing in drawings if drawing.ask.negative is not None]
        rows = [*guided, *drawings]
        texts = torch.stack([*(d.ask.negative for d in guided), *(d.ask.prompt for d in drawings)])
        latents = torch.cat([d.scheduler.scale_model_input(d.latents, d.time) for d in rows])
        times = torch.stack([d.time for d in rows])
        found = self._unet(latents, times, encoder_hidden_states=texts, return_dict=False)[0].split(1)
        free, seen = iter(found[: len(guided)]), found[len(guided) :]
        return [
            noise if d.ask.negative is None else (without := next(free)) + d.ask.guidance * (noise - without)
            for d, noise in zip(drawings, seen, strict=True)
        ]

    def picture(self, drawing: Drawing, latents: Any) -> tuple[Any, Any]:
        vae = self._pipeline.vae
        image = vae.decode(latents / vae.config.scaling_factor, return_dict=False)[0]
        return self._pipeline.image_processor.postprocess(image, output_type="pil")[0], None
