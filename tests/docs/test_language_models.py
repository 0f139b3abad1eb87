"""The Python of docs/language-models.md does what the page says."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cornstalk.tasks import LLM, ImageEncoder, Logprob
from cornstalk.testing import check, upload
from tests.cornstalk.test_media import png
from tests.docs.blocks import blocks

NAMES = """from pydantic import BaseModel
from cornstalk import CompositeTask, Stream
from cornstalk.media import ImageUpload, VideoUpload
from cornstalk.tasks import *
"""
MP4 = b"\0\0\0\x18ftypisom" + bytes(12)


@pytest.fixture
def page(tmp_path: Path) -> Iterator[ModuleType]:
    """All blocks of the page, one after the other, as one module."""
    file = tmp_path / "language_models_page.py"
    file.write_text("\n\n".join([NAMES, *(b.code for b in blocks("language-models") if b.language == "python")]))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules[file.stem]


def test_a_request_that_says_how_its_answer_is_drawn(page: ModuleType) -> None:
    engines: Any = {LLM: lambda prompt, top_k, seed, **_: {"text": f"{prompt} {top_k} {seed}", "tokens": 1}}
    run = check(page.Answering(), page.Question(text="say", top_k=5, seed=9), engines)
    assert run.response == "say 5 9"


def test_texts_pictures_and_a_video_in_their_order(page: ModuleType) -> None:
    def said(prompt: list[Any], images: list[str], videos: list[str], times: Any, **_: Any) -> dict[str, Any]:
        words = [part if isinstance(part, str) else f"<{part['type']}>" for part in prompt]
        return {"text": f"{''.join(words)} {images} {videos} {times}", "tokens": 1}

    engines: Any = {
        ImageEncoder: lambda image, video, fps, frames, **_: {
            "embeddings": f"{len(image or video)}",
            "times": [fps, frames] if video else [],
        },
        LLM: said,
    }
    before, after = png(9, 9), png(9, 10)
    request = page.Clip(before=upload(before), after=upload(after), clip=upload(MP4))
    run = check(page.Comparing(), request, engines)
    text = "This was before: <image> this after: <image> What happened here? <video>"
    assert run.response == f"{text} ['{len(before)}', '{len(after)}'] ['24'] [[2.0, 16.0]]"


def test_how_likely_each_token_was(page: ModuleType) -> None:
    likely = {"token": 7, "text": "yes", "logprob": -0.5, "top": []}
    engines: Any = {LLM: lambda logprobs, **_: {"text": str(logprobs), "tokens": 1, "logprobs": [likely]}}
    run = check(page.Weighing(), page.Question(text="say"), engines)
    assert (run.response.text, run.response.logprobs) == ("5", [Logprob.model_validate(likely)])
