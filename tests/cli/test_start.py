"""What starting the command costs: it is run by hand, and by scripts in loops."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import cornstalk
from tests.cli.tool import argv, environment

HEAVY = ("asyncio", "pydantic", "httpx", "msgspec", "fastapi", "numpy", "nats", "psutil", "uvloop", "uvicorn", "torch")
HELP_WITHIN = 0.3
"""Seconds of processor, which is what the clock says where nothing else runs."""
PYTHON = 0.015
"""Those that Python itself takes to start there. Neighbours on the same cores make it more, and all else with it."""


def cpu_seconds(args: list[str]) -> float:
    with subprocess.Popen(args, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment()) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize("args", [["--help"], ["invoke", "--help"], ["dlq", "ls", "--help"]])
def test_help_is_quick(args: list[str]) -> None:
    took = [(cpu_seconds(argv(*args)), cpu_seconds([sys.executable, "-c", "pass"])) for _ in range(5)]
    assert min(help / max(1.0, python / PYTHON) for help, python in took) < HELP_WITHIN


def test_help_imports_nothing_that_only_a_command_needs() -> None:
    code = "import sys, cornstalk.cli.main; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=True)
    assert set(done.stdout.split()).isdisjoint(HEAVY)


def test_every_public_name_is_found_when_it_is_used() -> None:
    for name in cornstalk.__all__:
        assert getattr(cornstalk, name) is not None
        assert name in dir(cornstalk)
    with pytest.raises(AttributeError, match="no attribute 'Nope'"):
        cornstalk.Nope  # type: ignore[attr-defined]  # noqa: B018
