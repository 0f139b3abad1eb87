"""The tiny Qwen3-Omni is a folder that transformers loads and speaks with, as it does with the large one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.omni.test_thinker import noise
from tests.omni.tiny_omni3 import CODES, GROUPS, PARTS, SPEAKERS, Whole, tiny_omni3

pytestmark = pytest.mark.models

SAMPLES = 1920
"""Of a frame of codes."""
LOST = 555
"""Samples that the last frame lacks: the layers that make sound finer look one frame ahead."""


def test_it_answers_text_and_sound_aloud(whole3: Whole) -> None:
    said = [
        whole3.answer("hello"),
        whole3.answer("hello", seed=2),
        whole3.answer("hello", speaker="Chelsie"),
        whole3.answer("hello", system="the dog"),
        whole3.answer("the dog and", noise(0.7, 1)),
        whole3.answer("the dog and", noise(2.5, 2)),
    ]
    for answer in said:
        assert answer.codes.shape[1] == GROUPS
        assert 0 <= int(answer.codes.min()) <= int(answer.codes.max()) < CODES
        assert answer.wave.shape == (len(answer.codes) * SAMPLES - LOST,)
        assert 0.1 < float(answer.wave.abs().max()) < 1.0
        rows, media, positions, speaker, *reply = answer.edge
        assert len(rows) == len(media) + 3 == positions.shape[1] + 3
        assert len(reply) == len(answer.tokens) - 1 + (len(answer.tokens) < 24)
        assert int(speaker) in SPEAKERS.values()
    assert said[0].text == said[1].text == said[2].text != said[3].text
    assert len({answer.text for answer in said}) == 4
    assert len({answer.wave.numpy().tobytes() for answer in said}) == 6
    assert [int(answer.edge[1].sum()) for answer in said] == [0, 0, 0, 0, 9, 33]


def test_each_part_has_a_file_of_its_own(folder3: Path, tmp_path: Path) -> None:
    named = json.loads((folder3 / "model.safetensors.index.json").read_text())["weight_map"]
    assert len(set(named.values())) == len(PARTS)
    assert sum(file.stat().st_size for file in folder3.iterdir()) < 8e6
    assert tiny_omni3(tmp_path / "again").is_dir()
    for file in folder3.iterdir():
        assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes()
