"""A folder with a small random Qwen3-Omni, one file of weights for each part, and what the whole model answers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.omni.tiny_omni import save_processors, seeded, split, tiny_tokenizer

SPECIAL: Final = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|audio_start|>", "<|audio_end|>", "<|audio_pad|>",
    "<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>", "<tts_pad>", "<tts_text_bos>",
    "<tts_text_eod>", "<tts_text_bos_single>",
]  # fmt: skip
TEMPLATE: Final = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for c in m['content'] %}{% if c['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif c['type'] == 'audio' %}<|audio_start|><|audio_pad|><|audio_end|>"
    "{% elif c['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PARTS: Final = ("thinker.audio_tower.", "thinker.visual.", "thinker.", "talker.", "code2wav.")
GROUPS: Final = 4  # codebooks of a frame
CODES: Final = 64  # of each codebook; those of the first are followed by 1024 of which none but one is drawn
HIDDEN: Final = 96
SPEAKERS: Final = {"chelsie": CODES + 301, "ethan": CODES + 302, "aiden": CODES + 303}
_ROPE: Final = {
    "rope_type": "default", "rope_theta": 1000000.0, "mrope_section": [6, 5, 5], "mrope_interleaved": True,
    "interleaved": True,
}  # fmt: skip


def tiny_omni3(folder: Path) -> Path:
    """Float32, 7 MB. Weights are those of a seed, wide enough apart that answers to two prompts differ."""
    import torch
    from transformers import (
        GenerationConfig,
        Qwen2VLImageProcessorPil,
        Qwen3OmniMoeForConditionalGeneration,
        WhisperFeatureExtractor,
    )

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tiny_tokenizer(SPECIAL, TEMPLATE, 340)
    torch.manual_seed(0)
    model = Qwen3OmniMoeForConditionalGeneration(_config(tokenizer)).eval()
    with torch.no_grad():
        _widen(model)
    ends = [tokenizer.eos_token_id, tokenizer.pad_token_id]
    model.generation_config = GenerationConfig(eos_token_id=ends, pad_token_id=tokenizer.pad_token_id)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    ears = WhisperFeatureExtractor(feature_size=128, sampling_rate=16000, hop_length=160, n_fft=400, chunk_length=300)
    eyes = Qwen2VLImageProcessorPil(patch_size=16, temporal_patch_size=2, merge_size=2)
    save_processors(folder, ears, eyes)
    split(folder, PARTS)
    return folder


def _widen(model: Any) -> None:
    import torch

    for name, weight in model.named_parameters():
        if name.startswith("code2wav."):
            if name.endswith(("layer_scale.scale", ".gamma")):
                weight.fill_(0.5)  # what comes before must be heard
            elif weight.ndim > 1:
                weight.mul_(4.0)
        elif weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.25)
    model.talker.codec_head.weight[model.config.talker_config.codec_eos_token_id].zero_()  # it seldom falls silent


def _config(tokenizer: Any) -> Any:
    from transformers import Qwen3OmniMoeConfig

    token = tokenizer.convert_tokens_to_ids
    media = {
        "audio_token_id": token("<|audio_pad|>"), "image_token_id": token("<|image_pad|>"),
        "video_token_id": token("<|video_pad|>"), "audio_start_token_id": token("<|audio_start|>"),
        "audio_end_token_id": token("<|audio_end|>"), "vision_start_token_id": token("<|vision_start|>"),
        "vision_end_token_id": token("<|vision_end|>"), "position_id_per_seconds": 13,
    }  # fmt: skip
    decoder = {
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "rope_parameters": _ROPE,
        "max_position_embeddings": 2048,
    }  # fmt: skip
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "norm_topk_prob": True}
    thinker = {
        **media, "user_token_id": token("user"),
        "audio_config": {
            "num_mel_bins": 128, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 64,
            "d_model": 64, "n_window": 50, "n_window_infer": 800, "output_dim": HIDDEN,
            "downsample_hidden_size": 16,
        },
        "vision_config": {
            "depth": 2, "hidden_size": 64, "intermediate_size": 96, "num_heads": 2, "out_hidden_size": HIDDEN,
            "num_position_embeddings": 64, "patch_size": 16, "deepstack_visual_indexes": [0, 1],
        },
        "text_config": {
            **decoder, **experts, "vocab_size": len(tokenizer), "hidden_size": HIDDEN, "intermediate_size": 128,
            "num_hidden_layers": 3, "bos_token_id": token("<|endoftext|>"), "eos_token_id": token("<|im_end|>"),
            "pad_token_id": token("<|endoftext|>"), "tie_word_embeddings": False,
        },
    }  # fmt: skip
    special = CODES + 100  # ids as far from the first codebook's as in the 30B
    talker = {
        **media, "num_code_groups": GROUPS, "thinker_hidden_size": HIDDEN, "accept_hidden_layer": 2,
        "codec_pad_id": special, "codec_bos_id": special + 1, "codec_eos_token_id": special + 2,
        "codec_nothink_id": special + 7, "codec_think_bos_id": special + 8, "codec_think_eos_id": special + 9,
        "speaker_id": SPEAKERS, "spatial_merge_size": 2,
        "text_config": {
            **decoder, **experts, "vocab_size": CODES + 1024, "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 2, "shared_expert_intermediate_size": 48,
        },
        "code_predictor_config": {
            "vocab_size": CODES, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "num_code_groups": GROUPS,
            "max_position_embeddings": 2048,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        },
    }  # fmt: skip
    code2wav = {
        "codebook_size": CODES, "num_quantizers": GROUPS, "hidden_size": 64, "num_attention_heads": 2,
        "num_key_value_heads": 2, "sliding_window": 24, "intermediate_size": 96, "num_hidden_layers": 2,
        "decoder_dim": 64, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }  # fmt: skip
    return Qwen3OmniMoeConfig(
        thinker_config=thinker,
        talker_config=talker,
        code2wav_config=code2wav,
        enable_audio_output=True,
        im_start_token_id=token("<|im_start|>"),
        im_end_token_id=token("<|im_end|>"),
        tts_pad_token_id=token("<tts_pad>"),
        tts_bos_token_id=token("<tts_text_bos>"),
        tts_eos_token_id=token("<tts_text_eod>"),
        system_token_id=token("system"),
        user_token_id=token("user"),
        assistant_token_id=token("assistant"),
    )


@dataclass(frozen=True)
class Answer:
    """`edge` is what a thinker sends its talker (docs/models/qwen3-omni.md): rows, media, positions, speaker, and then
    a row for each token of the reply but the last. `codes` [frames, GROUPS]; `wave` float32 [samples].
    """

    tokens: list[int]
    text: str
    edge: list[Any]
    codes: Any
    wave: Any


class Whole:
    """The whole model in transformers, which draws the codes with a seed."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoTokenizer, Qwen3OmniMoeForConditionalGeneration, WhisperFeatureExtractor

        self.model = Qwen3OmniMoeForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self._extractor = WhisperFeatureExtractor.from_pretrained(folder)

    def answer(
        self, text: str, sound: Any = None, *, system: str = "", media: str = "", inputs: Any = None, **more: Any
    ) -> Answer:
        """To a turn of `turn`; the rest is as of `ask`."""
        return self.ask(*self.turn(text, sound, system=system, media=media, inputs=inputs), **more)

    def turn(
        self, text: str, sound: Any = None, *, system: str = "", media: str = "", inputs: Any = None
    ) -> tuple[Any, dict[str, Any]]:
        """Tokens and inputs. `sound` float32 [n] at 16 kHz. `media` stands before the text as it does in the template,
        with as many placeholders as there are rows, and `inputs` are what transformers' processors made of it.
        """
        heard = dict(inputs or {})
        if sound is not None:
            made = self._extractor(
                sound, sampling_rate=16000, return_attention_mask=True, padding=True, truncation=False,
                return_tensors="pt",
            )  # fmt: skip
            heard |= {"input_features": made["input_features"], "feature_attention_mask": made["attention_mask"]}
            media = (
                f"<|audio_start|>{'<|audio_pad|>' * _rows_of(int(made['attention_mask'].sum()))}<|audio_end|>{media}"
            )
        turns = [{"role": "system", "content": system}] if system else []
        turns.append({"role": "user", "content": media + text})
        written = self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        return self.tokenizer(written, return_tensors="pt").input_ids, heard

    def ask(
        self, ids: Any, inputs: Any, *, seed: int = 1, tokens: int = 24, codes: int = 40, speaker: str = "Ethan"
    ) -> Answer:
        """Text is greedy; `codes` frames at most."""
        import torch

        model, ends = self.model, self.model.generation_config.eos_token_id
        with (
            seeded(model.thinker, "generate", 0) as thought,
            seeded(model.talker, "generate", seed) as drawn,
            _first_positions(model.talker.model) as positions,
            warnings.catch_warnings(),
        ):
            warnings.filterwarnings("ignore", "Passing `repetition_penalty` with `inputs_embeds`")
            sequence, wave = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                **inputs,
                speaker=speaker,
                return_audio=True,
                thinker_max_new_tokens=tokens,
                thinker_do_sample=False,
                thinker_eos_token_id=ends,
                talker_max_new_tokens=codes + 1,  # the last one is no frame: its other groups are never drawn
            )
        reply = [token for token in sequence[0, ids.shape[1] :].tolist() if token not in ends]
        return Answer(
            reply,
            self.tokenizer.decode(reply, skip_special_tokens=True),
            self._edge(thought["out"], ids, positions[0], speaker),
            torch.stack([step[-1][0] for step in drawn["out"].hidden_states if step[-1] is not None]),
            wave.reshape(-1),
        )

    def _edge(self, thought: Any, ids: Any, positions: Any, speaker: str) -> list[Any]:
        import torch

        config, talker = self.model.config, self.model.config.talker_config
        embeds, states = (
            torch.cat([step[layer][0] for step in thought.hidden_states]) for layer in (0, talker.accept_hidden_layer)
        )
        tokens = ids[0].tolist()
        kinds = (talker.audio_token_id, talker.image_token_id, talker.video_token_id)
        media = torch.isin(ids[0], torch.tensor(kinds))
        rows = torch.where(media.unsqueeze(1), states[: len(tokens)], embeds[: len(tokens)])
        starts = [i for i, token in enumerate(tokens) if token == config.im_start_token_id]
        turns = [range(a, b) for a, b in zip(starts, [*starts[1:], len(tokens)], strict=True)]
        read = [i for turn in turns if tokens[turn[0] + 1] == config.user_token_id for i in turn] + list(turns[-1])
        ends = torch.tensor([config.tts_bos_token_id, config.tts_eos_token_id, config.tts_pad_token_id])
        return [
            torch.cat([rows[read], self.model.thinker.get_input_embeddings()(ends)]).detach(),
            media[read].to(torch.uint8),
            positions[-3:, 0, : len(read)].float(),
            torch.tensor([talker.speaker_id[speaker.lower()]], dtype=torch.int32),
            *embeds[len(tokens) :].split(1),
        ]


@contextmanager
def _first_positions(model: Any) -> Iterator[list[Any]]:
    """Those that a decoder is first called with."""
    found: list[Any] = []
    hook = model.register_forward_pre_hook(lambda _, __, given: found.append(given["position_ids"]), with_kwargs=True)
    try:
        yield found
    finally:
        hook.remove()


def _rows_of(frames: int) -> int:
    """Of sound: 13 of each 100 frames of the spectrogram, and fewer of what is left."""
    left = frames % 100
    for _ in range(3):
        left = (left + 1) // 2
    return left + frames // 100 * 13
