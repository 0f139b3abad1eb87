"""Folders of small random text encoders as sentence-transformers saves them, and what transformers makes of a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.components.tiny_lm import tiny_tokenizer

PROMPTS = {"query": "the cat asks: ", "passage": ""}


def tiny_text(folder: Path, kind: str, pooling: str, *, normalize: bool = True, longest: int | None = 64) -> Path:
    """`kind`: model type of transformers; `pooling`: "cls_token", "mean_tokens" or "lasttoken"."""
    import torch
    from transformers import AutoConfig, AutoModel

    tokenizer = tiny_tokenizer(begins=True)
    tokenizer.save_pretrained(folder)
    sizes: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 96,
        "vocab_size": len(tokenizer),
        "pad_token_id": 0,
    }
    torch.manual_seed(3)
    model = AutoModel.from_config(AutoConfig.for_model(kind, **sizes), dtype=torch.float32)
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.2)
    model.save_pretrained(folder)
    modules = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    entries = [{"idx": n, "path": paths[m], "type": f"sentence_transformers.models.{m}"} for n, m in enumerate(modules)]
    (folder / "modules.json").write_text(json.dumps(entries))
    (folder / "1_Pooling").mkdir()
    modes = {
        f"pooling_mode_{mode}": mode == pooling for mode in ("cls_token", "mean_tokens", "max_tokens", "lasttoken")
    }
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 64, **modes}))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": PROMPTS}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": longest}))
    return folder


def vector_of(folder: Path, pooling: str, text: str, *, normalize: bool = True) -> Any:
    """By hand: float32 [64]."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    ids = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")["input_ids"]
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        states = model(input_ids=ids).last_hidden_state[0]
    vector = {"cls_token": states[0], "mean_tokens": states.mean(0), "lasttoken": states[-1]}[pooling]
    return (vector / vector.norm() if normalize else vector).numpy()
