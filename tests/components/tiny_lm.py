"""Folders of small random language models of any architecture, with a tokenizer made here."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

TEMPLATE: Final = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CONTROL: Final = ["<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|bos|>", "<|eos|>"]
_SIZES: Final[dict[str, Any]] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


def tiny_model(folder: Path, kind: str, *, template: str | None = TEMPLATE, **config: Any) -> Path:
    """`kind`: model type of transformers. Weights are those of a seed, wide enough apart that no two tokens tie."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    tokenizer = tiny_tokenizer(template)
    tokenizer.save_pretrained(folder)
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": 0}
    made = AutoConfig.for_model(kind, **{**_SIZES, "vocab_size": len(tokenizer), **ids, **config})
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(made, dtype=torch.float32)
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.2)
    model.save_pretrained(folder)
    return folder


def tiny_tokenizer(template: str | None = TEMPLATE, *, begins: bool = False) -> Any:
    """Bytes and a few words; `begins`: texts begin with a token of their own."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=CONTROL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(["the cat sat on the mat and the dog sat on the log"] * 4, trainer)
    if begins:
        bos = ("<|bos|>", backend.token_to_id("<|bos|>"))
        backend.post_processor = processors.TemplateProcessing(single="<|bos|> $A", special_tokens=[bos])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<|bos|>", eos_token="<|end|>")
    tokenizer.chat_template = template
    return tokenizer
