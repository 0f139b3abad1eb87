"""Wan 2.1, text to video: a diffusion transformer over all frames, and a VAE that decodes them one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from components.diffusers_folder import DiffusersFolder
from components.generator.diffusion import Ask, Diffusion, Drawing, asked_twice, unscaled
from cornstalk.errors import EngineError, SetupError

ROWS: Final = 512
"""Of a text, as the model reads it: the rest is zero."""


class Wan(Diffusion):
    """Latents float32 [1, channels, frames / 4 + 1, height / 8, width / 8], texts [n, size], n up to 512."""

    guidance = 5.0

    def __init__(self, folder: DiffusersFolder, dtype: Any, device: str) -> None:
        import torch
        from diffusers import AutoencoderKLWan, WanPipeline, WanTransformer3DModel
        from diffusers.models.autoencoders.autoencoder_kl_wan import WanCausalConv3d

        if folder.setting("boundary_ratio") is not None or folder.setting("expand_timesteps"):
            raise SetupError(f"{folder.path} holds a Wan 2.2, whose steps are others: known here is Wan 2.1")
        self._transformer = folder.part("transformer", WanTransformer3DModel, torch_dtype=dtype).to(device)
        if self._transformer.config.image_dim is not None:
            raise SetupError(f"{folder.path} begins with an image: known here is text to video")
        vae = folder.part("vae", AutoencoderKLWan, torch_dtype=torch.float32).to(device)  # as its authors advise
        self._memories = sum(isinstance(module, WanCausalConv3d) for module in vae.decoder.modules())
        self._pipeline = WanPipeline(
            tokenizer=None, text_encoder=None, vae=vae, scheduler=folder.scheduler(), transformer=self._transformer
        )
        self.dtype, self.device = dtype, device
        self.side = 480
        self.text_size = self._transformer.config.text_dim

    def begin(self, ask: Ask, check: Callable[[], None]) -> Drawing:
        import torch

        pipeline, random = self._pipeline, torch.Generator().manual_seed(ask.seed)
        if ask.frames % pipeline.vae_scale_factor_temporal != 1:
            raise EngineError(f"frames: {ask.frames} are not {pipeline.vae_scale_factor_temporal} n + 1", "bad_input")
        channels = self._transformer.config.in_channels
        latents = pipeline.prepare_latents(
            1, channels, ask.height, ask.width, ask.frames, torch.float32, torch.device(self.device), random
        )
        scheduler = self._times(pipeline.scheduler, num_inference_steps=ask.steps)
        scheduler.set_begin_index(0)
        return Drawing(ask, latents, scheduler, random, None, check)

    def noise(self, drawings: Sequence[Drawing]) -> list[Any]:
        return [
            noise if free is None else free + d.ask.guidance * (noise - free)
            for d, noise, free in asked_twice(drawings, self._look)
        ]

    def picture(self, drawing: Drawing, latents: Any) -> tuple[Any, Any]:
        """uint8 [1 or 4, height, width, 3]: the frames of one of the latents."""
        vae, memory = self._pipeline.vae, drawing.memory
        if memory is None:
            latents = vae.post_quant_conv(unscaled(latents, vae))
            memory = drawing.memory = [None] * self._memories
            made = vae.decoder(latents[:, :, :1], feat_cache=memory, feat_idx=[0], first_chunk=True)
        else:
            made = vae.decoder(latents[:, :, :1], feat_cache=memory, feat_idx=[0])
        frames = self._pipeline.video_processor.postprocess_video(made.clamp(-1.0, 1.0), output_type="pil")[0]
        rest = latents[:, :, 1:]
        return np.stack([np.asarray(frame) for frame in frames]), rest if rest.shape[2] else None

    def _look(self, drawings: Sequence[Drawing], texts: Sequence[Any]) -> Sequence[Any]:
        import torch

        rows = [torch.cat([text, text.new_zeros(ROWS - len(text), text.shape[1])]) for text in texts]
        found = self._transformer(
            hidden_states=torch.cat([drawing.latents for drawing in drawings]).to(self.dtype),
            timestep=torch.stack([drawing.time for drawing in drawings]),
            encoder_hidden_states=torch.stack(rows),
            return_dict=False,
        )[0]
        return found.split(1)  # type: ignore[no-any-return]
