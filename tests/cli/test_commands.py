"""Exit codes and messages of the command, as a user sees them. No tree runs."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.cli.tool import cornstalk


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["nonsense"], 2, "No such command"),
        (["up", "--port", "99999"], 2, "--port"),
        (["invoke"], 2, "APP"),
        (["up", "missing.py"], 2, "no such app file"),
        (["deploy"], 2, "deploy what?"),
        (["run", "nonsense"], 2, "known are nats, sidecar"),
        (["status"], 3, "nothing runs in"),
        (["invoke", "app", "text"], 3, "nothing runs in"),
        (["status", "--url", "http://127.0.0.1:1"], 3, "cannot reach"),
        (["invoke", "app", "--url", "http://127.0.0.1:1", "--field", "x"], 2, "not name=value"),
        (["invoke", "app", "--url", "http://127.0.0.1:1"], 3, "cannot reach"),
        (["invoke", "app", "--url", "http://127.0.0.1:1", "--set", "x"], 2, "not name=value"),
        (["invoke", "app", "--url", "http://127.0.0.1:1", "--file", "x"], 2, "not name=value"),
        (["status", "--watch", "--url", "http://127.0.0.1:1"], 3, "cannot reach"),
        (["trace", "0" * 32], 3, "nothing runs in"),
        (["trace", "xyz", "--url", "http://127.0.0.1:1"], 2, "expected 32 hex digits"),
        (["logs"], 3, "no logs in"),
        (["dlq", "ls"], 3, "nothing runs in"),
        (["dlq", "ls", "--url", "http://127.0.0.1:1"], 1, "no admin token"),
        (["dlq", "show", "x"], 2, "ID"),
        (["up", "--autoscale", "--workers", "2"], 2, "--workers fixes what --autoscale changes"),
        (["autoscale", "explain", "c"], 3, "nothing runs in"),
        (["autoscale", "set", "c", "--min", "-1"], 2, "--min"),
        (["autoscale", "set", "c", "--max", "many"], 2, "--max"),
        (["autoscale", "set", "c", "--url", "http://127.0.0.1:1"], 2, "set what?"),
        (["autoscale", "set", "c", "--min", "1", "--url", "http://127.0.0.1:1"], 1, "no admin token"),
        (["down"], 0, "nothing runs in"),
    ],
)
def test_exit_codes(tmp_path: Path, args: list[str], code: int, words: str) -> None:
    done = cornstalk(*args, CORNSTALK_STORE=str(tmp_path / "store"))
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = cornstalk("up", "--store", tmp_path / "s", "--port", str(port))
    assert done.returncode == 2
    assert f"cannot listen on port {port}" in done.stderr
    assert "next: cornstalk up --port 0" in done.stderr


def test_help_names_every_command() -> None:
    done = cornstalk("--help")
    assert done.returncode == 0
    for name in (
        "up",
        "down",
        "deploy",
        "invoke",
        "status",
        "trace",
        "logs",
        "dlq",
        "autoscale",
        "batch",
        "demo",
        "run",
    ):
        assert name in done.stdout


def test_a_service_takes_its_own_flags() -> None:
    done = cornstalk("run", "sidecar", "--help")
    assert done.returncode == 0
    assert "--socket" in done.stdout
