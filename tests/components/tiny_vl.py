"""Folders of small random multimodal models, and what transformers alone says with them.

Weights lie in two files, those of the eyes and the rest, so that a test can take one away.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from components.halves import _EYES
from components.media.images import Pixels

SIZE: Final = 64
EYES: Final = "eyes.safetensors"
WORDS: Final = "words.safetensors"
_WORDS: Final = "describe what these pictures show and why the cat sat on the mat"
_QWEN: Final = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for c in m['content'] %}{% if c['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}"
    "{{ c['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)


@dataclass(frozen=True)
class Family:
    """How the folder of one is made, and how transformers is asked."""

    special: Sequence[str]
    template: str
    config: Callable[[Callable[[str], int], dict[str, Any]], Any]
    processor: Callable[[], Any]
    placeholder: str


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


_QWEN_TOKENS: Final = (
    "<|endoftext|>", "<|im_end|>", "<|im_start|>",
    "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
FAMILIES: Final = {
    "qwen2_5_vl": Family(_QWEN_TOKENS, _QWEN, _qwen25, _qwen_processor, "<|image_pad|>"),
}


def tiny_vl(folder: Path, kind: str) -> Path:
    """Weights are those of a seed, wide enough apart that no two tokens tie and that pictures are told apart."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForImageTextToText
    from transformers.core_model_loading import revert_weight_conversion

    family = FAMILIES[kind]
    tokenizer = _tokenizer(family)
    ids: Callable[[str], int] = tokenizer.convert_tokens_to_ids
    ends = {"eos_token_id": ids(family.special[1]), "bos_token_id": ids(family.special[0]), "pad_token_id": 0}
    config = family.config(ids, {"vocab_size": len(tokenizer), **ends})
    torch.manual_seed(5)
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.15)
    _say_ascii(model, tokenizer)
    tokenizer.save_pretrained(folder)
    family.processor().save_pretrained(folder)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    tensors = {name: t.contiguous() for name, t in revert_weight_conversion(model, model.state_dict()).items()}
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
        tokenizer_object=backend, eos_token=family.special[1], pad_token=family.special[0]
    )
    tokenizer.chat_template = family.template
    return tokenizer


class Whole:
    """The model in one piece, as transformers runs it."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModelForImageTextToText, AutoTokenizer

        self.model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.family = FAMILIES[self.model.config.model_type]
        self.processor = type(self.family.processor()).from_pretrained(folder)

    def says(self, prompt: str, pictures: Sequence[Pixels], tokens: int) -> str:
        """The text of the likeliest tokens."""
        import torch

        content = [{"type": "image"}] * len(pictures) + [{"type": "text", "text": prompt}]
        text = self.tokenizer.apply_chat_template([{"role": "user", "content": content}], tokenize=False)
        inputs, counts = self._seen(pictures)
        before, *parts = text.split(self.family.placeholder)
        assert len(parts) == len(pictures)
        written = before + "".join(self.family.placeholder * n + part for n, part in zip(counts, parts, strict=True))
        ids = torch.tensor([self.tokenizer(written, add_special_tokens=False).input_ids])
        types = (ids == self.model.config.image_token_id).int()
        named = "token_type_ids" if self.model.config.model_type == "gemma3" else "mm_token_type_ids"
        made = self.model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=tokens,
            **({named: types} if self.family.placeholder in written or named[0] == "t" else {}), **inputs,
        )  # fmt: skip
        answer: str = self.tokenizer.decode(made[0, ids.shape[1] :])
        return answer

    def _seen(self, pictures: Sequence[Pixels]) -> tuple[dict[str, Any], list[int]]:
        if not pictures:
            return {}, []
        made = self.processor(images=list(pictures), return_tensors="pt", input_data_format="channels_last")
        counts = [int(grid.prod()) // 4 for grid in made["image_grid_thw"]]
        return dict(made), counts


def noise(seed: int, high: int, wide: int) -> Pixels:
    """A picture of blocks and noise."""
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (4, 4, 3)).repeat(-(-high // 4), 0).repeat(-(-wide // 4), 1)[:high, :wide]
    found: Pixels = np.clip(blocks + random.integers(-40, 40, (high, wide, 3)), 0, 255).astype(np.uint8)
    return found
