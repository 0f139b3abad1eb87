"""Folders with small random image generators, as diffusers saves them, and what its pipelines make of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.components.tiny_vl import tiny_vl

SIDE: Final = 64
"""Pixels, of an image that nobody asked for otherwise: the smallest that there are."""
_TEXT: Final = 64


def tiny_stable_diffusion(folder: Path, scheduler: str = "", **noises: Any) -> Path:
    """Float32, 5 MB. As that of Stable Diffusion 1.x, its scheduler looks back at the steps before."""
    import diffusers
    import torch
    from transformers import CLIPTextConfig, CLIPTextModel

    torch.manual_seed(0)
    unet = diffusers.UNet2DConditionModel(
        sample_size=SIDE // 2,
        in_channels=4,
        out_channels=4,
        block_out_channels=(32, 64),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=_TEXT,
        attention_head_dim=8,
        norm_num_groups=8,
    )
    vae = diffusers.AutoencoderKL(
        block_out_channels=(16, 32),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4,
        norm_num_groups=8,
    )
    text = CLIPTextConfig(
        hidden_size=_TEXT,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=77,
        vocab_size=512,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    noises |= {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1}
    if not scheduler:
        scheduler, noises = "PNDMScheduler", {**noises, "skip_prk_steps": True}
    pipeline = diffusers.StableDiffusionPipeline(
        vae=vae,
        text_encoder=CLIPTextModel(text),
        tokenizer=_clip_tokenizer(),
        unet=unet,
        scheduler=getattr(diffusers, scheduler)(**noises),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    for part in (unet, vae, pipeline.text_encoder):
        _widen(part)
    pipeline.save_pretrained(folder)
    return folder


def tiny_qwen_image(folder: Path) -> Path:
    """Float32, 4 MB. Its text encoder is a whole Qwen2.5-VL, as in the real one."""
    import diffusers
    import torch
    from transformers import AutoModelForImageTextToText, AutoTokenizer

    text = tiny_vl(folder.with_name(f"{folder.name}-text"), "qwen2_5_vl")
    torch.manual_seed(0)
    transformer = diffusers.QwenImageTransformer2DModel(
        in_channels=16,
        out_channels=4,
        num_layers=2,
        attention_head_dim=32,
        num_attention_heads=2,
        joint_attention_dim=_TEXT,
        axes_dims_rope=(8, 12, 12),
    )
    vae = diffusers.AutoencoderKLQwenImage(
        base_dim=12,
        z_dim=4,
        dim_mult=[1, 2, 2, 2],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
        latents_mean=[0.1, -0.1, 0.2, 0.0],
        latents_std=[1.5, 2.0, 1.0, 0.5],
    )
    for part in (transformer, vae):
        _widen(part)
    shift: dict[str, Any] = {"base_shift": 0.5, "max_shift": 0.9, "max_image_seq_len": 8192, "shift_terminal": 0.02}
    diffusers.QwenImagePipeline(
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, **shift),
        vae=vae,
        text_encoder=AutoModelForImageTextToText.from_pretrained(text, dtype=torch.float32),
        tokenizer=AutoTokenizer.from_pretrained(text),
        transformer=transformer,
    ).save_pretrained(folder)
    shutil.rmtree(text)
    return folder


def tiny_wan(folder: Path) -> Path:
    """Float32, 2 MB; text to video."""
    import diffusers
    import torch
    from transformers import UMT5Config, UMT5EncoderModel

    torch.manual_seed(0)
    transformer = diffusers.WanTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=16,
        out_channels=16,
        text_dim=_TEXT,
        freq_dim=32,
        ffn_dim=48,
        num_layers=2,
        rope_max_seq_len=32,
    )
    vae = diffusers.AutoencoderKLWan(
        base_dim=8, z_dim=16, dim_mult=[1, 1, 2, 2], num_res_blocks=1, temperal_downsample=[False, True, True]
    )
    text = UMT5Config(
        vocab_size=520, d_model=_TEXT, d_kv=16, d_ff=96, num_layers=2, num_heads=4, feed_forward_proj="gated-gelu"
    )
    encoder = UMT5EncoderModel(text)
    for part in (transformer, vae):
        _widen(part)
    flow = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0}
    diffusers.WanPipeline(
        tokenizer=_clip_tokenizer(),
        text_encoder=encoder,
        vae=vae,
        scheduler=diffusers.UniPCMultistepScheduler(**flow),
        transformer=transformer,
    ).save_pretrained(folder)
    return folder


TINY: Final[dict[str, Callable[[Path], Path]]] = {
    "stable_diffusion": tiny_stable_diffusion,
    "qwen_image": tiny_qwen_image,
}


def _widen(part: Any) -> None:
    """So far apart that two prompts, two seeds and two steps make different pictures."""
    import torch

    with torch.no_grad():
        for weight in part.parameters():
            if weight.dim() > 1:
                weight.mul_(1.5)


def _clip_tokenizer() -> Any:
    """Every byte is a token."""
    from tokenizers import pre_tokenizers
    from transformers import CLIPTokenizer

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ["<|startoftext|>", "<|endoftext|>", *letters, *(f"{letter}</w>" for letter in letters)]
    return CLIPTokenizer(vocab={word: i for i, word in enumerate(words)}, merges=[], model_max_length=77)


class Whole:
    """The model in one piece, as diffusers runs it."""

    def __init__(self, folder: Path) -> None:
        import diffusers

        self.pipeline = diffusers.DiffusionPipeline.from_pretrained(folder, local_files_only=True, safety_checker=None)
        self.pipeline.set_progress_bar_config(disable=True)

    def image(self, prompt: str, negative: str = "", *, seed: int, steps: int, guidance: float, **size: int) -> Any:
        """uint8 [height, width, 3]"""
        import numpy as np
        import torch

        scale = "true_cfg_scale" if "Qwen" in type(self.pipeline).__name__ else "guidance_scale"
        made = self.pipeline(
            prompt,
            negative_prompt=negative,
            num_inference_steps=steps,
            generator=torch.Generator().manual_seed(seed),
            **{scale: guidance},
            **size,
        )
        return np.asarray(made.images[0])
