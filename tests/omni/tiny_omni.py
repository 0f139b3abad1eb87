"""A folder with a small random Qwen2.5-Omni, one file of weights for each part, and what the whole model answers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

SPECIAL: Final = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|audio_bos|>", "<|audio_eos|>", "<|AUDIO|>", "<|IMAGE|>",
    "<|VIDEO|>", "<|vision_bos|>", "<|vision_eos|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>",
    "<tts_text_bos_single>",
]  # fmt: skip
TEMPLATE: Final = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PARTS: Final = ("thinker.audio_tower.", "thinker.visual.", "thinker.", "talker.", "token2wav.")
_HIDDEN: Final = 128
_CODES: Final = 64  # codec ids below; the special ones follow
_ROPE: Final = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]}


def tiny_omni(folder: Path) -> Path:
    """Float32, 3 MB. Weights are those of a seed, wide enough apart that answers to two prompts differ."""
    import torch
    from transformers import (
        Qwen2_5OmniForConditionalGeneration,
        Qwen2VLImageProcessorPil,
        WhisperFeatureExtractor,
    )

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tiny_tokenizer(SPECIAL, TEMPLATE)
    torch.manual_seed(0)
    model = Qwen2_5OmniForConditionalGeneration(_config(tokenizer)).eval()
    with torch.no_grad():
        _widen(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    ears = WhisperFeatureExtractor(feature_size=128, sampling_rate=16000, hop_length=160, n_fft=400)
    eyes = Qwen2VLImageProcessorPil(patch_size=14, temporal_patch_size=2, merge_size=2)
    save_processors(folder, ears, eyes)
    bos = tokenizer.convert_tokens_to_ids("<tts_text_bos>"), tokenizer.convert_tokens_to_ids("<tts_text_bos_single>")
    speakers = {
        name: {"bos_token": token, "cond": torch.randn(1, 16), "ref_mel": torch.randn(1, 30, 80)}
        for name, token in zip(("Chelsie", "Ethan"), bos, strict=True)
    }
    torch.save(speakers, folder / "spk_dict.pt")
    split(folder, PARTS)
    return folder


def _widen(model: Any) -> None:
    import torch

    for name, weight in model.named_parameters():
        if weight.ndim > 1:
            weight.mul_(3.0) if name.startswith("token2wav.") else torch.nn.init.normal_(weight, std=0.15)
    model.token2wav.code2wav_bigvgan_model.conv_post.weight.mul_(3000.0)  # loud enough for 16 bits to tell
    for token in (model.talker.codec_eos_token, model.talker.codec_pad_token):
        model.talker.codec_head.weight[token].zero_()  # it seldom falls silent


def split(folder: Path, parts: Sequence[str]) -> None:
    """One file for each part, as large models have several: a part must do without the files of the others."""
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    names = {key: f"{next(p for p in parts if key.startswith(p)).replace('.', '-')}0.safetensors" for key in weights}
    for name in set(names.values()):
        save_file({k: weights[k].contiguous() for k in weights if names[k] == name}, folder / name, {"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    (folder / "model.safetensors").unlink()


def save_processors(folder: Path, ears: Any, eyes: Any) -> None:
    """In one file, as folders of an omni model have them."""
    prepared = {**eyes.to_dict(), **ears.to_dict(), "image_processor_type": "Qwen2VLImageProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps(prepared))


def _config(tokenizer: Any) -> Any:
    from transformers import Qwen2_5OmniConfig

    token = tokenizer.convert_tokens_to_ids
    tokens = {
        "audio_token_index": token("<|AUDIO|>"), "image_token_index": token("<|IMAGE|>"),
        "video_token_index": token("<|VIDEO|>"), "audio_start_token_id": token("<|audio_bos|>"),
        "audio_end_token_id": token("<|audio_eos|>"), "vision_start_token_id": token("<|vision_bos|>"),
        "vision_end_token_id": token("<|vision_eos|>"),
    }  # fmt: skip
    decoder = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "rope_parameters": _ROPE}
    decoder |= {"max_position_embeddings": 2048}
    end = token("<|im_end|>")
    thinker = {
        **tokens, "user_token_id": token("<|im_start|>"), "pad_token_id": token("<|endoftext|>"),
        "audio_config": {
            "num_mel_bins": 128, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 64,
            "d_model": 64, "n_window": 100, "output_dim": _HIDDEN, "max_source_positions": 1500,
        },
        "vision_config": {
            "depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": _HIDDEN,
            "fullatt_block_indexes": [0], "window_size": 112, "patch_size": 14,
        },
        "text_config": {
            **decoder, "vocab_size": len(tokenizer), "hidden_size": _HIDDEN, "intermediate_size": 2 * _HIDDEN,
            "bos_token_id": token("<|endoftext|>"), "eos_token_id": end, "pad_token_id": token("<|endoftext|>"),
            "tie_word_embeddings": False,
        },
    }  # fmt: skip
    talker = {
        **tokens, **decoder, "vocab_size": _CODES + 8, "tts_codec_pad_token_id": _CODES,
        "tts_codec_start_token_id": _CODES + 1, "tts_codec_end_token_id": _CODES + 2,
        "tts_codec_mask_token_id": _CODES + 4, "tts_text_start_token_id": token("<tts_text_bos>"),
        "tts_text_end_token_id": token("<tts_text_eod>"), "tts_text_pad_token_id": token("<tts_pad>"),
        "embedding_size": _HIDDEN, "hidden_size": _HIDDEN // 2, "intermediate_size": _HIDDEN, "head_dim": 32,
        "pad_token_id": _CODES,
    }  # fmt: skip
    dit = {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 1, "head_dim": 32, "emb_dim": 16,
        "num_embeds": _CODES + 8, "look_ahead_layers": [1], "look_backward_layers": [0, 1], "enc_emb_dim": 16,
        "enc_dim": 16, "enc_channels": [16, 16, 16], "enc_kernel_sizes": [5, 3, 1], "enc_dilations": [1, 2, 1],
        "enc_res2net_scale": 2, "enc_attention_channels": 8, "enc_se_channels": 8, "mel_dim": 80,
    }  # fmt: skip
    bigvgan = {"mel_dim": 80, "upsample_initial_channel": 64, "resblock_kernel_sizes": [3],
               "resblock_dilation_sizes": [[1, 3, 5]]}  # fmt: skip
    return Qwen2_5OmniConfig(
        thinker_config=thinker,
        talker_config=talker,
        token2wav_config={"dit_config": dit, "bigvgan_config": bigvgan},
        enable_audio_output=True,
    )


def tiny_tokenizer(special: Sequence[str], template: str, size: int = 320) -> Any:
    """Of texts about the fox; names of roles are a token each if `size` has room."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False
    )
    texts = ["the quick brown fox jumps over the lazy dog", *(["system", "user", "assistant"] if size > 320 else [])]
    backend.train_from_iterator(texts * 4, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=template
    )
    return tokenizer


class Whole:
    """The whole model in transformers, which draws the codes with one seed and the noise of the sound with another."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoTokenizer, Qwen2_5OmniForConditionalGeneration, WhisperFeatureExtractor

        self.model = Qwen2_5OmniForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self._extractor = WhisperFeatureExtractor.from_pretrained(folder)

    def answer(
        self,
        text: str,
        sound: Any = None,
        *,
        seen: tuple[str, dict[str, Any]] = ("", {}),
        seeds: tuple[int, int] = (1, 2),
        tokens: int = 24,
        codes: int = 40,
    ) -> Answer:
        """`sound` float32 [n] at 16 kHz; `seen`: what stands in the text for pictures and videos, and inputs."""
        import torch

        heard: dict[str, Any] = {}
        placeholders = ""
        if sound is not None:
            made = self._extractor(
                sound, sampling_rate=16000, padding="max_length", return_attention_mask=True, return_tensors="pt"
            )
            frames = int(made["attention_mask"].sum())
            rows = ((frames - 1) // 2 + 1 - 2) // 2 + 1
            placeholders = f"<|audio_bos|>{'<|AUDIO|>' * rows}<|audio_eos|>"
            heard = {"input_features": made["input_features"], "feature_attention_mask": made["attention_mask"]}
        turn = f"<|im_start|>user\n{placeholders}{seen[0]}{text}<|im_end|>\n<|im_start|>assistant\n"
        ids = self.tokenizer(turn, return_tensors="pt").input_ids
        talker = self.model.talker
        ends = [talker.codec_eos_token, talker.codec_pad_token]
        with seeded(talker, "generate", seeds[0]) as drawn, seeded(self.model.token2wav, "forward", seeds[1]):
            sequence, wave = self.model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                **heard,
                **seen[1],
                thinker_max_new_tokens=tokens,
                thinker_do_sample=False,
                talker_max_new_tokens=codes,
                talker_eos_token_id=ends,
            )
        said = [code for code in drawn["out"][0, ids.shape[1] + 2 :].tolist() if code not in ends]
        reply = [token for token in sequence[0, ids.shape[1] :].tolist() if token != self.tokenizer.eos_token_id]
        rows = torch.cat([drawn["inputs_embeds"][0], drawn["thinker_reply_part"][0]])
        return Answer(reply, self.tokenizer.decode(reply, skip_special_tokens=True), rows, ids.shape[1], said, wave)


@dataclass(frozen=True)
class Answer:
    """`rows` of the talker: of `prompt` tokens, one that begins the reply, those of the reply, two that end it."""

    tokens: list[int]
    text: str
    rows: Any
    prompt: int
    codes: list[int]
    wave: Any


@contextmanager
def seeded(part: Any, method: str, seed: int) -> Iterator[dict[str, Any]]:
    """Seeds the global generator before each call; yields what the call was given, and `out`."""
    import torch

    called: dict[str, Any] = {}
    plain = getattr(part, method)

    def called_so(*args: Any, **kwargs: Any) -> Any:
        called.update({name: v.clone() if isinstance(v, torch.Tensor) else v for name, v in kwargs.items()})
        torch.manual_seed(seed & (2**63 - 1))
        called["out"] = plain(*args, **kwargs)
        return called["out"]

    setattr(part, method, called_so)
    try:
        yield called
    finally:
        setattr(part, method, plain)
