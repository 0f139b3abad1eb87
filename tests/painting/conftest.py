"""Small random image generators, one folder for each family, and the whole of each in diffusers to compare with."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from components.__main__ import ENVIRONMENT
from tests.painting.tiny_diffusion import TINY, Whole

for _name, _value in ENVIRONMENT.items():  # as in a worker: sums over several threads round otherwise
    os.environ.setdefault(_name, _value)


@dataclass(frozen=True)
class Family:
    name: str
    folder: Path
    whole: Whole


@pytest.fixture(scope="package", params=sorted(TINY))
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    import torch

    torch.set_num_threads(1)
    folder = TINY[request.param](tmp_path_factory.mktemp("painting") / request.param)
    return Family(request.param, folder, Whole(folder))
