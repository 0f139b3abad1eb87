"""Any folder with a causal language model: it says what transformers' own generation says, or is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from components import models
from components.llm.chat import Chat
from components.llm.model import Model, Rows
from components.llm.transformers_engine import TransformersEngine
from cornstalk.errors import EngineError, SetupError
from cornstalk.tasks import LLM
from tests.components.fake_call import FakeCall
from tests.components.tiny_lm import CONTROL, TEMPLATE, tiny_model, tiny_tokenizer

pytestmark = pytest.mark.models

PROMPT = "the cat sat on the log and on the mat"
TOKENS = 24


async def started(model: str | Path) -> TransformersEngine:
    engine = TransformersEngine(LLM(model=str(model), dtype="float32"))
    await engine.start()
    return engine


async def said(engine: TransformersEngine, **inputs: Any) -> list[int]:
    """The tokens of an answer, up to the last that completed a character."""
    call = FakeCall(prompt=PROMPT, **{"max_tokens": TOKENS, **inputs})
    await engine.run(call)
    await engine.stop()
    return [token for tokens in call.tokens for token in tokens]


def expected(folder: Path) -> list[int]:
    """The likeliest tokens by transformers alone."""
    import torch
    from transformers import AutoModelForCausalLM

    prompt = Chat(folder).prompt(PROMPT, "")
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.tensor([prompt])
    made = plain.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False)
    tokens: list[int] = made[0, len(prompt) :].tolist()
    return tokens


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("llama", {}),
        ("qwen2", {}),
        ("qwen3", {"head_dim": 32}),
        ("mistral", {"sliding_window": 8}),
        ("gemma3_text", {"head_dim": 16, "sliding_window": 8, "tie_word_embeddings": False}),
        ("gpt2", {}),
        ("granite", {"logits_scaling": 3.0}),
        ("phi3", {}),
        ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "head_dim": 32}),
    ],
)
async def test_it_says_what_the_model_says_elsewhere(tmp_path: Path, kind: str, config: dict[str, Any]) -> None:
    folder = tiny_model(tmp_path, kind, **config)
    tokens = await said(await started(folder))
    assert tokens == expected(folder)[: len(tokens)]
    assert len(set(tokens)) > 3


@pytest.mark.parametrize(
    ("kind", "config", "why"),
    [
        ("bloom", {"n_head": 4, "n_layer": 3}, "its attention cannot be replaced"),
        ("mamba", {}, "its attention cannot be replaced"),
        ("gemma2", {"head_dim": 16}, "caps or adds logits of attention"),
        ("lfm2", {"layer_types": ["conv", "full_attention", "conv"]}, "looks at other tokens elsewhere"),
    ],
)
async def test_a_model_that_would_say_something_else_is_refused(
    tmp_path: Path, kind: str, config: dict[str, Any], why: str
) -> None:
    folder = tiny_model(tmp_path, kind, **config)
    with pytest.raises(SetupError, match=f"cannot be served: .*{why}"):
        await started(folder)


@pytest.mark.parametrize(
    ("take_away", "why"),
    [
        ("config.json", "a folder as transformers saves it has a config.json"),
        ("model.safetensors", "holds no language model that can be loaded: .*safetensors"),
        ("tokenizer.json", "holds no tokenizer that can be loaded"),
    ],
)
async def test_a_folder_that_is_not_whole_is_refused(tmp_path: Path, take_away: str, why: str) -> None:
    folder = tiny_model(tmp_path, "llama")
    (folder / take_away).unlink()
    with pytest.raises(SetupError, match=why):
        await started(folder)


@pytest.mark.parametrize(
    ("file", "damage", "why"),
    [
        ("model.safetensors", lambda whole: whole[:-1000], "can be loaded: .*not fully covered"),
        ("model.safetensors", lambda whole: whole[:20], "can be loaded: .*header"),
        ("model.safetensors", lambda _: b"", "can be loaded: .*header"),
        ("model.safetensors", lambda _: b"\xff" * 5000, "can be loaded: .*header"),
        ("config.json", lambda _: b"{", "no configuration that can be read"),
        ("config.json", lambda _: b'{"model_type": "nothing"}', "no configuration that can be read"),
        ("config.json", lambda whole: whole.replace(b'"num_hidden_layers": 3', b'"num_hidden_layers": 4'), "lacks 9"),
        ("config.json", lambda whole: whole.replace(b'"hidden_size": 64', b'"hidden_size": 32'), "can be loaded"),
        ("tokenizer.json", lambda _: b"{}", "no tokenizer that can be loaded"),
        ("tokenizer_config.json", lambda whole: whole[:20], "no tokenizer that can be loaded"),
        ("generation_config.json", lambda whole: whole[:20], "does not say where an answer ends"),
    ],
)
async def test_a_folder_that_is_damaged_is_refused(tmp_path: Path, file: str, damage: Any, why: str) -> None:
    folder = tiny_model(tmp_path, "llama")
    whole = (folder / file).read_bytes()
    assert damage(whole) != whole
    (folder / file).write_bytes(damage(whole))
    with pytest.raises(SetupError, match=why):
        await started(folder)


@pytest.mark.parametrize("kind", ["ViTConfig", "T5Config", "BertConfig", "WhisperConfig"])
async def test_another_architecture_is_refused(tmp_path: Path, kind: str) -> None:
    import transformers

    folder = tiny_model(tmp_path, "llama")
    getattr(transformers, kind)(num_hidden_layers=1, hidden_size=64, num_attention_heads=2).save_pretrained(folder)
    with pytest.raises(SetupError, match=r"can be loaded|lacks"):
        await started(folder)


async def test_weights_that_may_hold_code_are_not_loaded(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path, "llama")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(SetupError, match="can be loaded"):
        await started(folder)


async def test_the_context_is_the_one_of_the_model(tmp_path: Path) -> None:
    engine = await started(tiny_model(tmp_path, "llama"))
    with pytest.raises(EngineError, match="takes 127") as caught:
        await engine.run(FakeCall(prompt=PROMPT * 20))
    assert caught.value.engine_code == "prompt_too_long"
    await engine.stop()


async def test_a_name_in_the_cache_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--someone--tiny"
    folder = tiny_model(repository / "snapshots" / ("a" * 40), "llama")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    assert models.language_model("someone/tiny") == folder
    assert await said(await started("someone/tiny")) == await said(await started(folder))
    with pytest.raises(SetupError, match=r"no language model 'someone/else': this release knows smollm2-135m-instruct"):
        models.language_model("someone/else")


def test_another_dtype_is_another_component() -> None:
    found = {LLM(dtype=dtype).component for dtype in ("auto", "float32", "bfloat16")}
    assert len(found) == 3
    assert LLM(model="/models/tiny").component.startswith("llm-tiny-")


def test_it_computes_in_the_precision_that_is_asked_for(tmp_path: Path) -> None:
    folder, logits = tiny_model(tmp_path, "llama"), []
    for dtype in ("float32", "bfloat16"):
        model = Model(folder, 64, dtype)
        logits.append(model.read(Rows(model.memory(3), 0, (9, 8, 7))))
    apart = float((logits[0] - logits[1]).abs().max() / logits[0].abs().max())
    assert 1e-4 < apart < 1e-1


# ------------------------------------------------------------ prompts


def chat(folder: Path, template: str | None, *, begins: bool = False) -> Chat:
    tiny_tokenizer(template, begins=begins).save_pretrained(folder)
    return Chat(folder)


def shown(chat: Chat, system: str = "") -> str:
    text: str = chat.backend.decode(chat.prompt("the <|end|> cat", system), skip_special_tokens=False)
    return text


@pytest.mark.parametrize(
    ("template", "begins", "alone", "led"),
    [
        (TEMPLATE, False, "<|user|>the <|end|> cat<|end|><|assistant|>", "<|system|>sit<|end|>"),
        (None, False, "the <|end|> cat", "sit\n\n"),
        (None, True, "<|bos|>the <|end|> cat", ""),
    ],
)
def test_prompts_by_template_or_without_one(
    tmp_path: Path, template: str | None, begins: bool, alone: str, led: str
) -> None:
    made = chat(tmp_path, template, begins=begins)
    assert shown(made) == alone
    if led:
        assert shown(made, "sit") == led + alone


@pytest.mark.parametrize("refusal", ["{{ raise_exception('no system here') }}", ""])
def test_a_template_without_a_place_for_the_system_text(tmp_path: Path, refusal: str) -> None:
    template = (
        "{% for m in messages %}{% if m['role'] == 'system' %}" + refusal + "{% else %}"
        "<|user|>{{ m['content'] | trim }}<|end|>{% endif %}{% endfor %}<|assistant|>"
    )
    made = chat(tmp_path, template)
    assert shown(made) == "<|user|>the <|end|> cat<|end|><|assistant|>"
    assert shown(made, "sit") == "<|user|>sit\n\nthe <|end|> cat<|end|><|assistant|>"


def test_every_token_that_ends_an_answer_does(tmp_path: Path) -> None:
    from transformers import GenerationConfig

    made = chat(tmp_path, TEMPLATE)
    end, eos = (made.backend.token_to_id(token) for token in CONTROL[3::2])
    assert made.end_ids == {end}
    for ids, found in (([eos, end], {eos, end}), (eos, {eos, end}), (None, {end})):
        GenerationConfig(eos_token_id=ids).save_pretrained(tmp_path)
        assert Chat(tmp_path).end_ids == found
