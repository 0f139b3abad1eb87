"""Each part of Qwen2.5-Omni loads from its own weights alone, and says what is wrong with a folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from components.engine import Engine
from components.registry import engine_for
from cornstalk.errors import SetupError
from cornstalk.task import UnitTask
from cornstalk.tasks.omni import OmniEar, Talker, Thinker, Vocoder

pytestmark = [pytest.mark.models, pytest.mark.asyncio]

OWN = {OmniEar: "thinker-audio_tower-0", Thinker: "thinker-0", Talker: "talker-0", Vocoder: "token2wav-0"}
KINDS = sorted(OWN, key=lambda kind: kind.__name__)


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(folder, tmp_path / "copy")


def engine(kind: type[UnitTask], folder: Path) -> Engine:
    return engine_for(kind(**{"model": str(folder), **({} if kind is Vocoder else {"dtype": "float32"})}))


@pytest.mark.parametrize("kind", KINDS)
async def test_the_files_of_other_parts_need_not_be_there(kind: type[UnitTask], copy: Path) -> None:
    for file in copy.glob("*.safetensors"):
        if file.stem != OWN[kind]:
            file.unlink()
    found = engine(kind, copy)
    await found.start()
    await found.stop()


@pytest.mark.parametrize("kind", KINDS)
async def test_broken_and_missing_weights(kind: type[UnitTask], copy: Path) -> None:
    own = copy / f"{OWN[kind]}.safetensors"
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


@pytest.mark.parametrize("kind", KINDS)
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


async def test_a_thinker_without_a_tokenizer_and_an_ear_without_a_preprocessor(copy: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "preprocessor_config.json"):
        (copy / name).unlink()
    with pytest.raises(SetupError, match="holds no tokenizer"):
        await engine(Thinker, copy).start()
    with pytest.raises(SetupError, match="does not say how audio is prepared"):
        await engine(OmniEar, copy).start()
