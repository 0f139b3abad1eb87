"""Each part of a Qwen-Omni loads from its own weights alone, and says what is wrong with a folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from components.engine import Engine
from components.registry import engine_for
from cornstalk.errors import EngineError, SetupError
from cornstalk.task import UnitTask
from cornstalk.tasks.omni import OmniEar, Talker, Thinker, Vocoder
from cornstalk.tasks.seeing import ImageEncoder
from tests.components.fake_call import FakeCall

pytestmark = [pytest.mark.models, pytest.mark.asyncio]

OWN: dict[tuple[str, type[UnitTask]], str] = {
    ("folder", OmniEar): "thinker-audio_tower-0",
    ("folder", Thinker): "thinker-0",
    ("folder", Talker): "talker-0",
    ("folder", Vocoder): "token2wav-0",
    ("folder", ImageEncoder): "thinker-visual-0",
    ("folder3", OmniEar): "thinker-audio_tower-0",
    ("folder3", Thinker): "thinker-0",
    ("folder3", ImageEncoder): "thinker-visual-0",
    ("folder3", Talker): "talker-0",
    ("folder3", Vocoder): "code2wav-0",
}
"""The file of each part of each family, by the fixture that makes its folder."""
parts = pytest.mark.parametrize(
    ("made", "kind"), [pytest.param(*part, id=f"{part[0]}-{part[1].__name__}") for part in OWN]
)
families = pytest.mark.parametrize("made", sorted({made for made, _ in OWN}))


@pytest.fixture
def made() -> str:
    return "folder"


@pytest.fixture
def copy(request: pytest.FixtureRequest, made: str, tmp_path: Path) -> Path:
    return shutil.copytree(request.getfixturevalue(made), tmp_path / "copy")


def engine(kind: type[UnitTask], folder: Path) -> Engine:
    return engine_for(kind(**{"model": str(folder), **({} if kind is Vocoder else {"dtype": "float32"})}))


@parts
async def test_the_files_of_other_parts_need_not_be_there(made: str, kind: type[UnitTask], copy: Path) -> None:
    for file in copy.glob("*.safetensors"):
        if file.stem != OWN[made, kind]:
            file.unlink()
    found = engine(kind, copy)
    await found.start()
    await found.stop()


@parts
async def test_broken_and_missing_weights(made: str, kind: type[UnitTask], copy: Path) -> None:
    own = copy / f"{OWN[made, kind]}.safetensors"
    own.write_bytes(own.read_bytes()[:-100])
    with pytest.raises(SetupError, match=f"{own.name} is missing, broken or not whole"):
        await engine(kind, copy).start()
    index = copy / "model.safetensors.index.json"
    named = json.loads(index.read_text())
    own.unlink()
    with pytest.raises(SetupError, match=f"{own.name} is missing"):
        await engine(kind, copy).start()
    named["weight_map"] = {name: file for name, file in named["weight_map"].items() if file != own.name}
    index.write_text(json.dumps(named))
    with pytest.raises(SetupError, match=r"lacks|is missing"):
        await engine(kind, copy).start()


@pytest.mark.parametrize("kind", [OmniEar, Talker, Thinker, Vocoder])
async def test_another_family(kind: type[UnitTask], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}))
    with pytest.raises(SetupError, match=r"holds a llama; such parts are known of Qwen2\.5-Omni, Qwen3-Omni"):
        await engine(kind, tmp_path).start()
    with pytest.raises(SetupError, match="nothing_there"):
        await engine(kind, tmp_path / "nothing_there").start()


@pytest.mark.parametrize("kind", [Thinker, Vocoder])
async def test_voices(kind: type[UnitTask], copy: Path) -> None:
    speakers = copy / "spk_dict.pt"
    speakers.write_bytes(b"no voices")
    with pytest.raises(SetupError, match=r"spk_dict.pt cannot be read"):
        await engine(kind, copy).start()
    speakers.unlink()
    with pytest.raises(SetupError, match=r"spk_dict.pt is missing: it holds the voices"):
        await engine(kind, copy).start()


async def test_a_thinker_that_has_no_talker(folder3: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder3, tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "enable_audio_output": False}))
    thinker = engine(Thinker, copy)
    await thinker.start()
    with pytest.raises(EngineError, match="no speaker 'Chelsie'; this model has none"):
        await thinker.run(FakeCall(**Thinker.defaults, prompt="hello"))
    silent = FakeCall(**{**Thinker.defaults, "prompt": "hello", "max_tokens": 4, "speak": False})
    await thinker.run(silent)
    assert silent.text
    await thinker.stop()


async def test_a_template_in_which_a_talker_would_find_no_turns(folder3: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder3, tmp_path / "copy")
    tokenizer = AutoTokenizer.from_pretrained(copy)
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
    tokenizer.save_pretrained(copy)
    with pytest.raises(SetupError, match=r"chat template .* turns of users .* <\|im_start\|>"):
        await engine(Thinker, copy).start()


@families
async def test_a_thinker_without_a_tokenizer_and_an_ear_without_a_preprocessor(copy: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "preprocessor_config.json"):
        (copy / name).unlink()
    with pytest.raises(SetupError, match="holds no tokenizer"):
        await engine(Thinker, copy).start()
    with pytest.raises(SetupError, match="does not say how audio is prepared"):
        await engine(OmniEar, copy).start()
