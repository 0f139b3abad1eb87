"""Every block of docs/testing.md runs, and prints what is said there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files that the page shows, each under the name in its first line."""
    for language, text in blocks():
        if language == "python":
            name = text.partition("\n")[0].removeprefix("# ")
            (tmp_path / name).write_text(text)
    return tmp_path


def blocks() -> list[tuple[str, str]]:
    return BLOCK.findall((ROOT / "docs" / "testing.md").read_text())


def run(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}"}
    return subprocess.run([sys.executable, *argv], cwd=folder, env=env, capture_output=True, text=True, timeout=60)


def test_the_tests_on_the_page_pass(folder: Path) -> None:
    done = run(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", ".")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 passed" in done.stdout


def test_the_graph_on_the_page_is_what_is_printed(folder: Path) -> None:
    done = run(folder, "show.py")
    assert done.stdout == next(text for language, text in blocks() if language == "text"), done.stderr
