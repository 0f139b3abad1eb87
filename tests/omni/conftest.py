"""A small random Qwen2.5-Omni, and the whole of it in transformers to compare with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from components.__main__ import ENVIRONMENT
from tests.omni.tiny_omni import Whole, tiny_omni

for _name, _value in ENVIRONMENT.items():  # as in a worker: sums over several threads round otherwise
    os.environ.setdefault(_name, _value)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_omni(tmp_path_factory.mktemp("omni") / "tiny-omni")


@pytest.fixture(scope="session")
def whole(folder: Path) -> Whole:
    return Whole(folder)
