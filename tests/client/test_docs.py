"""Each code block of docs/clients.md is run against a real stack, and says what stands below it."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.client.media import WAV
from tests.client.nodejs import NODE
from tests.stack import ROOT, Stack

FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MODULE = re.compile(r"// (\w+\.mjs)\n")
RUN = {
    "bash": ("block.sh", ["bash", "-euo", "pipefail"]),
    "python": ("block.py", [sys.executable, "-W", "error"]),
    "js": ("block.mjs", [*NODE]),
}


@dataclass(frozen=True)
class Block:
    """Code, and what it prints; … stands for anything."""

    line: int
    language: str
    code: str
    prints: str


def blocks(text: str) -> list[Block]:
    found: list[Block] = []
    for match in FENCED.finditer(text):
        language, code = match[1], match[2]
        if language == "text":
            last = found.pop()
            found.append(Block(last.line, last.language, last.code, code))
        else:
            found.append(Block(text[: match.start()].count("\n") + 1, language, code, ""))
    return found


DOC = (ROOT / "docs" / "clients.md").read_text()
MODULES = [b for b in blocks(DOC) if MODULE.match(b.code)]
RUNNABLE = [b for b in blocks(DOC) if not MODULE.match(b.code)]


def located(code: str, stack: Stack) -> str:
    """With the addresses of this stack's gateways."""
    for given, port in zip((8700, 8701), stack.ports, strict=True):
        code = code.replace(f"127.0.0.1:{given}", f"127.0.0.1:{port}")
    return code


def test_every_block_is_known() -> None:
    assert {b.language for b in blocks(DOC)} == set(RUN)
    assert all(b.prints for b in RUNNABLE)
    assert [MODULE.findall(b.code)[0] for b in MODULES] == ["cornstalk.mjs", "speak.mjs"]


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("block", RUNNABLE, ids=lambda b: f"{b.language}-line-{b.line}")
async def test_block(spoken: Stack, tmp_path: Path, block: Block) -> None:
    (tmp_path / "question.wav").write_bytes(WAV)
    for module in MODULES:
        (tmp_path / MODULE.findall(module.code)[0]).write_text(module.code)
    name, argv = RUN[block.language]
    (tmp_path / name).write_text(located(block.code, spoken))
    process = await asyncio.create_subprocess_exec(
        *argv,
        name,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 30)
    assert (process.returncode, err.decode()) == (0, "")
    expected = ".*".join(re.escape(part.strip()) for part in block.prints.split("…"))
    assert re.fullmatch(rf"\s*{expected}\s*", out.decode(), re.DOTALL), out.decode()
