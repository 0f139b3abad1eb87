"""What type checkers see of an app: `Stream[T]` is T, calls know their inputs, `chunks` gives pieces (rules 6, 27)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

USE = """
from collections.abc import AsyncIterator
from typing import assert_type

from pydantic import BaseModel

from cornstalk import App, CompositeTask, Stream, Tensor, UnitTask, chunks, wait
from cornstalk.tasks import LLM


class Eye(UnitTask):
    class Out(BaseModel):
        emb: Tensor

    def __call__(self, *, image: str) -> Out:
        raise NotImplementedError


class Ask(BaseModel):
    text: str
    image: str | None = None


class Reply(BaseModel):
    text: Stream[str]
    words: int


class Omni(CompositeTask):
    brain = LLM()
    eye = Eye()

    def invoke(self, q: Ask) -> Reply:
        out = self.brain(prompt=q.text)
        assert_type(out.text, str)
        assert_type(out.tokens, int)
        assert_type(wait(out.text), str)
        assert_type(self.eye(image="x").emb, Tensor)
        self.brain(promt=q.text)  # type: ignore[call-arg]
        self.brain(prompt=out.tokens)  # type: ignore[arg-type]
        self.eye(image=self.eye(image="x").emb)  # type: ignore[arg-type]
        out.txt  # type: ignore[attr-defined]
        return Reply(text=out.text, words=len(out.text.split()))


async def serve(q: Ask) -> Reply:
    pieces = chunks("text")
    assert_type(pieces, AsyncIterator[str])
    return Reply(text="".join([piece async for piece in pieces]), words=1)


App("omni", Omni())
App("served", serve)
App("wrong", 5)  # type: ignore[arg-type]
"""


def test_type_checkers_see_values(tmp_path: Path) -> None:
    file = tmp_path / "use.py"
    file.write_text(USE)
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", "pyproject.toml", str(file)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
