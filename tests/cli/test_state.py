"""The state file, the lock of a store, and where the socket goes."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from cornstalk.cli.errors import UNREACHABLE, CliError
from cornstalk.cli.procfs import start_time
from cornstalk.cli.state import (
    Running,
    State,
    admin_token_file,
    open_store,
    read_state,
    running_state,
    socket_path,
    store_path,
    write_state,
)


def state(pid: int, started: int) -> State:
    return State(pid, started, True, ["http://127.0.0.1:1"], "nats://x", "t", "a", "s", [Running("nats", 1, 1)])


def mine() -> State:
    return state(os.getpid(), start_time(os.getpid()) or 0)


def test_round_trip(tmp_path: Path) -> None:
    assert read_state(tmp_path) is None
    write_state(tmp_path, mine())
    assert read_state(tmp_path) == mine()
    assert running_state(tmp_path).url == "http://127.0.0.1:1"
    assert stat.S_IMODE((tmp_path / "state.json").stat().st_mode) == 0o600


def test_a_reused_pid_is_not_taken_for_ours(tmp_path: Path) -> None:
    write_state(tmp_path, state(os.getpid(), 1))
    with pytest.raises(CliError, match="nothing runs") as caught:
        running_state(tmp_path)
    assert caught.value.exit_code == UNREACHABLE


def test_a_broken_state_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(CliError, match="not readable"):
        read_state(tmp_path)


def test_a_store_has_one_tree(tmp_path: Path) -> None:
    store = tmp_path / "store"
    lock = open_store(store)
    write_state(store, mine())
    assert stat.S_IMODE(store.stat().st_mode) == 0o700
    with pytest.raises(CliError, match="already runs") as caught:
        open_store(store)
    assert f"process {os.getpid()}" in caught.value.why
    os.close(lock)
    os.close(open_store(store))


def test_where_the_store_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CORNSTALK_STORE", raising=False)
    monkeypatch.chdir(tmp_path)
    assert store_path(None) == tmp_path / ".cornstalk"
    monkeypatch.setenv("CORNSTALK_STORE", "/elsewhere")
    assert store_path(None) == Path("/elsewhere")
    assert store_path(Path("/flag")) == Path("/flag")


def test_a_long_store_path_gets_a_short_private_socket(tmp_path: Path) -> None:
    assert socket_path(Path("/s")) == Path("/s/sidecar.sock")
    path = socket_path(tmp_path / ("x" * 100))
    try:
        assert len(os.fsencode(path)) <= 107
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        path.parent.chmod(0o755)
        with pytest.raises(CliError, match="not private"):
            socket_path(tmp_path / ("x" * 100))
    finally:
        path.parent.rmdir()


def test_the_admin_token_is_made_once(tmp_path: Path) -> None:
    path = admin_token_file(tmp_path)
    token = path.read_text()
    assert len(token) >= 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert admin_token_file(tmp_path).read_text() == token
