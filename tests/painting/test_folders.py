"""Each part of an image generator loads from its own folders alone, and says what is wrong with them."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from components.engine import Engine
from components.registry import engine_for
from cornstalk.errors import SetupError
from cornstalk.task import UnitTask
from cornstalk.tasks.painting import ImageGenerator, PromptEncoder
from tests.painting.conftest import Family
from tests.stack import ROOT

pytestmark = [pytest.mark.models, pytest.mark.asyncio]

KINDS = [ImageGenerator, PromptEncoder]
TEXT = {"text_encoder", "tokenizer"}


@pytest.fixture
def copy(family: Family, tmp_path: Path) -> Path:
    return shutil.copytree(family.folder, tmp_path / "copy")


def engine(kind: type[UnitTask], folder: Path) -> Engine:
    return engine_for(kind.model_validate({"model": str(folder), "dtype": "float32"}))


def weights(kind: type[UnitTask], folder: Path) -> Path:
    parts = ("text_encoder",) if kind is PromptEncoder else ("unet", "transformer")
    return next(file for part in parts for file in (folder / part).glob("*.safetensors"))


@pytest.mark.parametrize("kind", KINDS)
async def test_the_folders_of_the_other_part_need_not_be_there(kind: type[UnitTask], copy: Path) -> None:
    for part in copy.iterdir():
        if part.is_dir() and (part.name in TEXT) == (kind is ImageGenerator):
            shutil.rmtree(part)
    found = engine(kind, copy)
    await found.start()
    await found.stop()


@pytest.mark.parametrize("kind", KINDS)
async def test_broken_and_missing_weights(kind: type[UnitTask], copy: Path) -> None:
    from safetensors.torch import load_file, save_file

    own = weights(kind, copy)
    tensors = load_file(own)
    own.write_bytes(own.read_bytes()[:-100])
    with pytest.raises(SetupError, match=r"missing, broken or not whole"):
        await engine(kind, copy).start()
    lost = next(name for name in sorted(tensors) if "visual" not in name and name.endswith("weight"))
    save_file({name: tensor for name, tensor in tensors.items() if name != lost}, own, {"format": "pt"})
    with pytest.raises(SetupError, match=r"lacks 1 weights|broken"):
        await engine(kind, copy).start()
    own.unlink()
    with pytest.raises(SetupError, match=r"missing, broken or not whole"):
        await engine(kind, copy).start()


@pytest.mark.parametrize("kind", KINDS)
async def test_another_family(kind: type[UnitTask], tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": "FluxPipeline"}))
    with pytest.raises(SetupError, match=r"holds a FluxPipeline; known here are Stable Diffusion .* Qwen-Image"):
        await engine(kind, tmp_path).start()
    (tmp_path / "model_index.json").write_text("{")
    with pytest.raises(SetupError, match=r"model_index.json cannot be read"):
        await engine(kind, tmp_path).start()
    with pytest.raises(SetupError, match=r"no image generator in .*: a folder as diffusers saves it"):
        await engine(kind, tmp_path / "nothing_there").start()


async def test_no_tokenizer_no_scheduler_or_an_unknown_one(copy: Path) -> None:
    shutil.rmtree(copy / "tokenizer")
    with pytest.raises(SetupError, match="tokenizer is missing or broken"):
        await engine(PromptEncoder, copy).start()
    index = json.loads((copy / "model_index.json").read_text())
    for named in (["diffusers", "UNet2DConditionModel"], ["diffusers", "NoneSuchScheduler"], "x", None):
        (copy / "model_index.json").write_text(json.dumps({**index, "scheduler": named}))
        with pytest.raises(SetupError, match="scheduler is missing or broken"):
            await engine(ImageGenerator, copy).start()
    (copy / "model_index.json").write_text(json.dumps(index))
    shutil.rmtree(copy / "scheduler")
    with pytest.raises(SetupError, match="scheduler is missing or broken"):
        await engine(ImageGenerator, copy).start()


async def test_only_who_starts_such_an_engine_imports_diffusers() -> None:
    modules = "registry", "llm.engines", "encoder.prompt", "encoder.vision", "generator.image", "generator.video"
    names = ", ".join(f"components.{module}" for module in modules)
    code = f"import sys, cornstalk.tasks, {names}; print({{'diffusers', 'torch'}} & set(sys.modules))"
    run = await asyncio.create_subprocess_exec(sys.executable, "-c", code, cwd=ROOT, stdout=subprocess.PIPE)
    out, _ = await asyncio.wait_for(run.communicate(), 60)
    assert out.strip() == b"set()"


async def test_a_distilled_model_is_not_taken_for_another_one(family: Family, copy: Path) -> None:
    named = {"qwen_image": ("transformer", "guidance_embeds"), "stable_diffusion": ("unet", "time_cond_proj_dim")}
    part, setting = named[family.name]
    file = copy / part / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), setting: 8}))
    with pytest.raises(SetupError, match=r"distilled|lacks"):
        await engine(ImageGenerator, copy).start()
