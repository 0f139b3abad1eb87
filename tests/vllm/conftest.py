"""Needs vLLM, which has a virtual environment of its own: `make test-vllm`."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any, Final

import pytest

from components.__main__ import ENVIRONMENT

ARGUMENTS: Final[dict[str, Any]] = {"max_model_len": 1024, "max_num_seqs": 8, "enforce_eager": True}
"""Engine arguments with which it starts fast."""

collect_ignore_glob = [] if find_spec("vllm") else ["test_*.py"]
for _name, _value in (ENVIRONMENT | {"VLLM_CPU_KVCACHE_SPACE": "1"}).items():
    os.environ.setdefault(_name, _value)


def pytest_configure(config: pytest.Config) -> None:
    """An engine of vLLM that was stopped leaves this to the collector: seen where one process has several."""
    config.addinivalue_line("filterwarnings", "ignore:Unclosed context:ResourceWarning")
