"""Converts a GGUF file into a folder that transformers loads: `python -m components.convert FILE FOLDER`.

bfloat16 safetensors, configuration, tokenizer and chat template. About 1 GB of memory and 20 s for SmolLM2-135M.
"""

from __future__ import annotations

import sys
from pathlib import Path


def convert(gguf: Path, folder: Path) -> None:
    """The weights are dequantised; the folder is complete when this returns, and not before."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # save_pretrained refuses a model that came from GGUF, although its weights are plain by now.
    tied = "lm_head.weight" if model.config.tie_word_embeddings else ""
    weights = {n: w.to(torch.bfloat16).contiguous() for n, w in model.state_dict().items() if n != tied}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    del model.config.quantization_config
    model.config.dtype = torch.bfloat16
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    try:
        convert(Path(sys.argv[1]), Path(sys.argv[2]))
    except ImportError as error:
        sys.exit(f"it needs {error.name}: pip install 'cornstalk[models]'")
