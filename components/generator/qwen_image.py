"""Qwen-Image: a diffusion transformer over the rows of image and prompt, asked with the prompt and against it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from components.diffusers_folder import DiffusersFolder
from components.generator.diffusion import Ask, Diffusion, Drawing, asked_twice, unscaled
from cornstalk.errors import SetupError


class QwenImage(Diffusion):
    """Latents [1, height / 16 * width / 16, channels], texts [n, size] of any n: shorter ones are padded and masked."""

    guidance = 4.0

    def __init__(self, folder: DiffusersFolder, dtype: Any, device: str) -> None:
        from diffusers import AutoencoderKLQwenImage, QwenImagePipeline, QwenImageTransformer2DModel

        self._transformer = folder.part("transformer", QwenImageTransformer2DModel, torch_dtype=dtype).to(device)
        if self._transformer.config.guidance_embeds:
            raise SetupError(f"{folder.path} holds a distilled model, which takes the guidance: it is not known here")
        self._pipeline = QwenImagePipeline(
            scheduler=folder.scheduler(),
            vae=folder.part("vae", AutoencoderKLQwenImage, torch_dtype=dtype).to(device),
            text_encoder=None,
            tokenizer=None,
            transformer=self._transformer,
        )
        self.dtype, self.device = dtype, device
        self._scale: int = self._pipeline.vae_scale_factor
        self.side = self._pipeline.default_sample_size * self._scale
        self.text_size = self._transformer.config.joint_attention_dim

    def begin(self, ask: Ask, check: Callable[[], None]) -> Drawing:
        import torch
        from diffusers.pipelines.qwenimage.pipeline_qwenimage import calculate_shift

        pipeline, random = self._pipeline, torch.Generator().manual_seed(ask.seed)
        latents = pipeline.prepare_latents(
            1,
            self._transformer.config.in_channels // 4,
            ask.height,
            ask.width,
            self.dtype,
            torch.device(self.device),
            random,
        )
        known = pipeline.scheduler.config
        shift = calculate_shift(
            latents.shape[1],
            known.get("base_image_seq_len", 256),
            known.get("max_image_seq_len", 4096),
            known.get("base_shift", 0.5),
            known.get("max_shift", 1.15),
        )
        sigmas = np.linspace(1.0, 1 / ask.steps, ask.steps)
        scheduler = self._times(pipeline.scheduler, sigmas=sigmas, mu=shift)
        scheduler.set_begin_index(0)
        return Drawing(ask, latents, scheduler, random, None, check)

    def noise(self, drawings: Sequence[Drawing]) -> list[Any]:
        return [
            noise if free is None else _guided(noise, free, d.ask.guidance)
            for d, noise, free in asked_twice(drawings, self._look)
        ]

    def advance(self, drawing: Drawing, noise: Any) -> Any:
        clear = drawing.latents - drawing.scheduler.sigmas[drawing.step].to(noise.dtype) * noise
        super().advance(drawing, noise)
        return clear

    def picture(self, drawing: Drawing, latents: Any) -> tuple[Any, Any]:
        pipeline, vae = self._pipeline, self._pipeline.vae
        latents = pipeline._unpack_latents(latents, drawing.ask.height, drawing.ask.width, self._scale)
        image = vae.decode(unscaled(latents, vae), return_dict=False)[0][:, :, 0]
        return pipeline.image_processor.postprocess(image, output_type="pil")[0], None

    def _look(self, drawings: Sequence[Drawing], texts: Sequence[Any]) -> Sequence[Any]:
        import torch
        from torch.nn.utils.rnn import pad_sequence

        ask = drawings[0].ask
        rows = [[(1, ask.height // self._scale // 2, ask.width // self._scale // 2)]] * len(drawings)
        lengths = torch.tensor([len(text) for text in texts])
        read = torch.arange(int(lengths.max())) < lengths[:, None]
        found = self._transformer(
            hidden_states=torch.cat([drawing.latents for drawing in drawings]),
            timestep=torch.stack([drawing.time for drawing in drawings]).to(self.dtype) / 1000,
            encoder_hidden_states=pad_sequence(list(texts), batch_first=True),
            encoder_hidden_states_mask=None if bool(read.all()) else read.to(self.device),
            img_shapes=rows,
            return_dict=False,
        )[0]
        return found.split(1)  # type: ignore[no-any-return]


def _guided(seen: Any, free: Any, guidance: float) -> Any:
    """As far from `free` as is asked for, and as long as what was seen with the prompt."""
    import torch

    both = free + guidance * (seen - free)
    return both * (torch.norm(seen, dim=-1, keepdim=True) / torch.norm(both, dim=-1, keepdim=True))
