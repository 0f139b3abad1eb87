"""Folders of small random multimodal models, and what transformers alone says with them.

Weights lie in two files, those of the eyes and the rest, so that a test can take one away.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from components.halves import _EYES
from components.media.images import Pixels

SIZE: Final = 64
VIDEO_LIMITS: Final = {"shortest_edge": 1024, "longest_edge": 49_152}
"""Pixels of all frames, for Qwen3-VL, whose folders say it."""
EYES: Final = "eyes.safetensors"
WORDS: Final = "words.safetensors"
_WORDS: Final = "describe what these pictures show and why the cat sat on the mat"
_QWEN: Final = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for c in m['content'] %}{% if c['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif c['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>{% else %}"
    "{{ c['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)


@dataclass(frozen=True)
class Family:
    """How the folder of one is made, and how transformers is asked."""

    special: Sequence[str]
    template: str
    config: Callable[[Callable[[str], int], dict[str, Any]], Any]
    processor: Callable[[], Any]
    names: Mapping[str, str] = field(default_factory=dict)
    """How the processor of transformers asks its tokenizer for special tokens, if it does."""


def _text(**more: Any) -> dict[str, Any]:
    return {
        "hidden_size": SIZE,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 2048,
        **more,
    }


def _qwen25(ids: Callable[[str], int], text: dict[str, Any]) -> Any:
    from transformers import Qwen2_5_VLConfig

    return Qwen2_5_VLConfig(
        text_config=_text(**text, rope_parameters=_MROPE),
        vision_config={**_VISION, "fullatt_block_indexes": [1], "window_size": 56, "out_hidden_size": SIZE},
        **_qwen_ids(ids),
    )


def _qwen2(ids: Callable[[str], int], text: dict[str, Any]) -> Any:
    from transformers import Qwen2VLConfig

    vision = {"depth": 2, "embed_dim": 32, "mlp_ratio": 2, "num_heads": 2, "hidden_size": SIZE}
    return Qwen2VLConfig(
        text_config=_text(**text, rope_parameters=_MROPE),
        vision_config=vision,
        **_qwen_ids(ids),
        tie_word_embeddings=True,
    )


def _qwen3(ids: Callable[[str], int], text: dict[str, Any]) -> Any:
    from transformers import Qwen3VLConfig

    return Qwen3VLConfig(
        text_config=_text(**text, head_dim=32, rope_parameters={**_MROPE, "mrope_interleaved": True}),
        vision_config={
            **_VISION,
            "patch_size": 16,
            "num_position_embeddings": 64,
            "out_hidden_size": SIZE,
            "deepstack_visual_indexes": [0, 1],
        },
        **_qwen_ids(ids),
    )


def _llava(ids: Callable[[str], int], text: dict[str, Any]) -> Any:
    from transformers import LlavaOnevisionConfig

    return LlavaOnevisionConfig(
        text_config={"model_type": "qwen2", **_text(**text)},
        vision_config=_SIGLIP,
        image_token_index=ids("<image>"),
        video_token_index=ids("<video>"),
        image_grid_pinpoints=_PINPOINTS,
    )


def _llava_processor() -> Any:
    from transformers import LlavaOnevisionImageProcessorPil

    return LlavaOnevisionImageProcessorPil(size={"height": 56, "width": 56}, image_grid_pinpoints=_PINPOINTS)


def _internvl(ids: Callable[[str], int], text: dict[str, Any]) -> Any:
    from transformers import InternVLConfig

    return InternVLConfig(
        text_config={"model_type": "qwen2", **_text(**text)},
        vision_config={
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 64,
            "image_size": [56, 56],
            "patch_size": [14, 14],
        },
        image_token_id=ids("<IMG_CONTEXT>"),
        tie_word_embeddings=False,
    )


def _internvl_processor() -> Any:
    from transformers import GotOcr2ImageProcessorPil

    return GotOcr2ImageProcessorPil(size={"height": 56, "width": 56}, max_patches=6)


def _gemma3(ids: Callable[[str], int], text: dict[str, Any]) -> Any:
    from transformers import Gemma3Config

    return Gemma3Config(
        text_config=_text(
            **text,
            head_dim=32,
            query_pre_attn_scalar=32,
            sliding_window=12,
            layer_types=["sliding_attention", "full_attention"],
        ),
        vision_config={**_SIGLIP, "image_size": 112},
        mm_tokens_per_image=16,
        boi_token_index=ids("<start_of_image>"),
        eoi_token_index=ids("<end_of_image>"),
        image_token_index=ids("<image_soft_token>"),
        tie_word_embeddings=False,
    )


def _gemma3_processor() -> Any:
    from transformers import Gemma3ImageProcessorPil

    return Gemma3ImageProcessorPil(size={"height": 112, "width": 112})


_PINPOINTS: Final = [[56, 56], [56, 112], [112, 56], [112, 112], [56, 168], [168, 56]]
_SIGLIP: Final = {
    "model_type": "siglip_vision_model",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 56,
    "patch_size": 14,
    "vision_use_head": False,
}
_MROPE: Final = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [4, 6, 6]}
_VISION: Final = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "patch_size": 14}


def _qwen_ids(ids: Callable[[str], int]) -> dict[str, int]:
    return {
        "image_token_id": ids("<|image_pad|>"),
        "video_token_id": ids("<|video_pad|>"),
        "vision_start_token_id": ids("<|vision_start|>"),
        "vision_end_token_id": ids("<|vision_end|>"),
    }


def _qwen_processor(**more: Any) -> Any:
    from transformers import Qwen2VLImageProcessorPil

    return Qwen2VLImageProcessorPil(size={"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 24}, **more)


_LLAVA: Final = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }} "
    "{% for c in m['content'] | selectattr('type', 'equalto', 'image') %}<image>{% endfor %}"
    "{% for c in m['content'] | selectattr('type', 'equalto', 'video') %}<video>{% endfor %}"
    "{% for c in m['content'] | selectattr('type', 'equalto', 'text') %}{{ '\n' + c['text'] }}{% endfor %}"
    "<|im_end|>{% endfor %}<|im_start|>assistant\n"
)
_INTERNVL: Final = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% for c in m['content'] %}{% if c['type'] == 'image' %}"
    "<IMG_CONTEXT>\n{% elif c['type'] == 'video' %}<video>\n{% else %}{{ c['text'] }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
_GEMMA: Final = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m['role'] }}\n{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}<start_of_image>{% else %}{{ c['text'] | trim }}{% endif %}{% endfor %}"
    "<end_of_turn>\n{% endfor %}<start_of_turn>model\n"
)
_QWEN_TOKENS: Final = (
    "<|endoftext|>", "<|im_end|>", "<|im_start|>",
    "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
_LLAVA_TOKENS: Final = ("<|endoftext|>", "<|im_end|>", "<|im_start|>", "<image>", "<video>")
_INTERNVL_TOKENS: Final = ("<|endoftext|>", "<|im_end|>", "<|im_start|>", "<img>", "</img>", "<IMG_CONTEXT>", "<video>")
_GEMMA_TOKENS: Final = (
    "<bos>", "<end_of_turn>", "<start_of_turn>", "<start_of_image>", "<end_of_image>", "<image_soft_token>",
)  # fmt: skip


def _qwen(config: Any, processor: Any = _qwen_processor) -> Family:
    return Family(_QWEN_TOKENS, _QWEN, config, processor)


FAMILIES: Final = {
    "qwen2_5_vl": _qwen(_qwen25),
    "qwen2_vl": _qwen(_qwen2),
    "qwen3_vl": _qwen(_qwen3, lambda: _qwen_processor(patch_size=16)),
    "llava_onevision": Family(_LLAVA_TOKENS, _LLAVA, _llava, _llava_processor),
    "internvl": Family(
        _INTERNVL_TOKENS, _INTERNVL, _internvl, _internvl_processor,
        names={
            "start_image_token": "<img>", "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>", "video_token": "<video>",
        },
    ),
    "gemma3": Family(
        _GEMMA_TOKENS, _GEMMA, _gemma3, _gemma3_processor,
        names={
            "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>",
        },
    ),
}  # fmt: skip


def tiny_vl(folder: Path, kind: str, *, seed: int = 5, tower: int = 5) -> Path:
    """Weights are those of two seeds, wide enough apart that no two tokens tie and that pictures are told apart."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForImageTextToText
    from transformers.core_model_loading import revert_weight_conversion

    family = FAMILIES[kind]
    tokenizer = _tokenizer(family)
    ids: Callable[[str], int] = tokenizer.convert_tokens_to_ids
    ends = {"eos_token_id": ids(family.special[1]), "bos_token_id": ids(family.special[0]), "pad_token_id": 0}
    config = family.config(ids, {"vocab_size": len(tokenizer), **ends})
    torch.manual_seed(tower)
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    for part, number in ((model, seed), (getattr(model.model, "vision_tower", None), tower)):
        torch.manual_seed(number)
        for weight in part.parameters() if part is not None else ():
            if weight.dim() > 1:
                torch.nn.init.normal_(weight, std=0.15)
    _say_ascii(model, tokenizer)
    tokenizer.save_pretrained(folder)
    family.processor().save_pretrained(folder)
    if kind == "qwen3_vl":
        (folder / "video_preprocessor_config.json").write_text(json.dumps({"size": VIDEO_LIMITS}))
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    state = model.state_dict()
    if config.tie_word_embeddings:
        del state["lm_head.weight"]
    tensors = {name: tensor.contiguous() for name, tensor in revert_weight_conversion(model, state).items()}
    files = {name: EYES if _EYES.match(name) else WORDS for name in tensors}
    for file in (EYES, WORDS):
        save_file({n: t for n, t in tensors.items() if files[n] == file}, folder / file, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return folder


def half(folder: Path, without: str) -> str:
    """The path of a copy that lacks one of the files."""
    copy = shutil.copytree(folder, folder.with_name(f"{folder.name}-without-{without.partition('.')[0]}"))
    (copy / without).unlink()
    return str(copy)


def _say_ascii(model: Any, tokenizer: Any) -> None:
    """It never draws a part of a character nor an end: texts are as telling as tokens."""
    import torch

    with torch.no_grad():
        for token in range(len(tokenizer)):
            text = tokenizer.decode([token], skip_special_tokens=True)
            if not text.isprintable() or not text.isascii() or not text:
                model.lm_head.weight[token] = 0.0


def _tokenizer(family: Family) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=list(family.special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([_WORDS] * 4, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=family.special[0], eos_token=family.special[1], pad_token=family.special[0]
    )
    tokenizer.chat_template = family.template
    return tokenizer


def noise(seed: int, high: int, wide: int) -> Pixels:
    """A picture of blocks and noise."""
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (4, 4, 3)).repeat(-(-high // 4), 0).repeat(-(-wide // 4), 1)[:high, :wide]
    found: Pixels = np.clip(blocks + random.integers(-40, 40, (high, wide, 3)), 0, 255).astype(np.uint8)
    return found
