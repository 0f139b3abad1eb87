"""A small random Qwen2.5-Omni and a Qwen3-Omni, and the whole of each in transformers to compare with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from components.__main__ import ENVIRONMENT
from tests.omni import tiny_omni3
from tests.omni.tiny_omni import Whole, tiny_omni

for _name, _value in ENVIRONMENT.items():  # as in a worker: sums over several threads round otherwise
    os.environ.setdefault(_name, _value)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_omni(tmp_path_factory.mktemp("omni") / "tiny-omni")


@pytest.fixture(scope="session")
def whole(folder: Path) -> Whole:
    return Whole(folder)


@pytest.fixture(scope="session")
def folder3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_omni3.tiny_omni3(tmp_path_factory.mktemp("omni3") / "tiny-omni3")


@pytest.fixture(scope="session")
def whole3(folder3: Path) -> tiny_omni3.Whole:
    return tiny_omni3.Whole(folder3)
