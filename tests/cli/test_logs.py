"""Logs as files: the last lines, what comes, rotation. No tree runs."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from cornstalk.cli.errors import UNREACHABLE, USAGE, CliError
from cornstalk.cli.logs import Tail, logs
from tests.cli.tool import argv, started, wait_until


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two gateways, a worker with a dot in its name, and nats-server."""
    (tmp_path / "logs").mkdir()
    for name in ("gateway-0", "gateway-1", "null-a.0"):
        (tmp_path / "logs" / f"{name}.log").write_text("".join(f"{name} {i}\n" for i in range(30)))
    (tmp_path / "nats").mkdir()
    (tmp_path / "nats" / "nats.log").write_text("ready\n")
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str], store: Path, name: str | None = None, lines: int = 2) -> list[str]:
    logs(store, name, False, lines)
    return capsys.readouterr().out.splitlines()


def test_the_last_lines_of_each(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, store) == [
        "gateway-0  gateway-0 28",
        "gateway-0  gateway-0 29",
        "gateway-1  gateway-1 28",
        "gateway-1  gateway-1 29",
        "null-a.0   null-a.0 28",
        "null-a.0   null-a.0 29",
        "nats       ready",
    ]


def test_one_log_needs_no_name_and_a_beginning_chooses_several(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, store, "null-a.0", 1) == ["null-a.0 29"]
    assert printed(capsys, store, "gateway", 1) == ["gateway-0  gateway-0 29", "gateway-1  gateway-1 29"]
    assert printed(capsys, store, "gateway", 0) == []


def test_what_there_is_not(store: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(CliError, match="no process 'x'") as caught:
        logs(store, "x", False, 1)
    assert caught.value.exit_code == USAGE
    assert "gateway-0" in caught.value.why
    with pytest.raises(CliError, match="no logs in") as caught:
        logs(tmp_path_factory.mktemp("empty"), None, False, 1)
    assert caught.value.exit_code == UNREACHABLE


def test_each_line_once_and_whole_over_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"one\ntw")
    with Tail(path) as tail:
        assert tail.last(5) == ["one"]
        with path.open("ab") as file:
            file.write(b"o\nlast of the old\n")
        path.replace(tmp_path / "a.log.1")
        path.write_bytes(b"first of the new\n")
        assert list(tail.new()) == ["two", "last of the old", "first of the new"]
        path.write_bytes(b"cut\n")
        assert list(tail.new()) == ["cut"]
        path.unlink()
        assert list(tail.new()) == []
    path.write_bytes(b"3\n")
    with Tail(path) as tail:
        assert tail.last(3) == ["two", "last of the old", "3"]


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"\xff\x00 ok\n")
    with Tail(tmp_path / "a.log") as tail:
        assert tail.last(1) == ["\ufffd\x00 ok"]


def test_following_until_ctrl_c(store: Path) -> None:
    args = argv("logs", "gateway", "--follow", "-n", "1", "--store", store)
    with started(args, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        with (store / "logs" / "gateway-1.log").open("a") as file:
            file.write("comes\n")
        lines.append(process.stdout.readline())
        (store / "logs" / "gateway-2.log").write_text("another\n")
        lines.append(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        wait_until(lambda: process.poll() is not None)
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert process.returncode == 0
    assert [line.split()[-1] for line in lines] == ["29", "29", "comes", "another"]
