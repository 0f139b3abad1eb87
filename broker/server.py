"""An embedded nats-server: found, started on loopback, owned by this process."""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlparse

from broker.discovery import MINIMUM, Found, find_server
from broker.errors import StartFailed, StoreLocked

__all__ = ["MAX_PAYLOAD", "MINIMUM", "Found", "Server", "find_server"]

MAX_PAYLOAD: Final = 1 << 20

_CONFIG = """\
server_name: cornstalk
host: "127.0.0.1"
port: {port}
http: "127.0.0.1:-1"
ports_file_dir: {run}
log_file: {log}
logfile_size_limit: 16MB
logfile_max_num: 2
max_payload: {max_payload}
authorization {{ token: {token} }}
jetstream {{ store_dir: {store}, max_mem: 256MB, max_file: {max_file}{sync} }}
"""


class Server:
    """A nats-server that dies with this process and keeps its data in `store`.

    Guarantees: loopback only; one server per store (the lock lives as long as the server, not as its starter); token
    only in files of mode 0600; started again, the same object has the same port, token and data. `max_file` is what
    JetStream may use on disk, in bytes; with `sync_always` acknowledged messages survive a power loss, at 260-600/s.
    """

    def __init__(
        self,
        store: Path,
        *,
        port: int = -1,
        token: str | None = None,
        max_file: int = 4 << 30,
        sync_always: bool = False,
    ) -> None:
        self.store = Path(store).resolve()
        self.token_file = self.store / "nats.token"
        self.token = token or ""
        self.url = ""
        self.monitor_url = ""
        self._port = port
        self._max_file = max_file
        self._sync_always = sync_always
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id; 0 when never started."""
        return self._process.pid if self._process else 0

    def poll(self) -> int | None:
        """Return code once the server has ended, else None. 0 when never started."""
        return self._process.poll() if self._process else 0

    def start(self, timeout: float = 10.0) -> None:
        """Blocks until JetStream answers, some 50 ms. Call it from the main thread: the server dies with its thread.

        Raises NotFound, TooOld, StoreLocked, StartFailed.
        """
        if self.poll() is None:
            raise StartFailed(f"already running as process {self.pid}")
        if threading.current_thread() is not threading.main_thread():
            raise StartFailed("start the server from the main thread: it ends with the thread that starts it")
        found = find_server()
        self.store.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(self.store / "nats.lock") as lock:
            self._settle_token()
            run = self.store / "run"
            shutil.rmtree(run, ignore_errors=True)
            run.mkdir(mode=0o700)
            guard = [sys.executable, "-I", "-S", str(Path(__file__).with_name("exec_guard.py")), str(os.getpid())]
            with open(self.store / "nats.stderr", "wb") as output:
                self._process = subprocess.Popen(
                    [*guard, found.path, "-c", str(self._write_config(run))],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    pass_fds=[lock],
                )
        self._await_ready(run, time.monotonic() + timeout)

    def stop(self, grace: float = 10.0) -> None:
        """SIGTERM, after `grace` seconds SIGKILL; returns when the server is gone."""
        if self._process and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(grace)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """SIGKILL; returns when the server is gone."""
        if self._process:
            self._process.kill()
            self._process.wait()

    def _settle_token(self) -> None:
        if not self.token:
            try:
                self.token = self.token_file.read_text().strip()
            except FileNotFoundError:
                pass
        self.token = self.token or secrets.token_urlsafe(24)
        _write_private(self.token_file, self.token)

    def _write_config(self, run: Path) -> Path:
        config = self.store / "nats.conf"
        text = _CONFIG.format(
            port=self._port,
            run=json.dumps(str(run)),
            log=json.dumps(str(self.store / "nats.log")),
            max_payload=MAX_PAYLOAD,
            token=json.dumps(self.token),
            store=json.dumps(str(self.store)),
            max_file=self._max_file,
            sync=", sync_interval: always" if self._sync_always else "",
        )
        _write_private(config, text)
        return config

    def _await_ready(self, run: Path, deadline: float) -> None:
        while not self._is_ready(run):
            if self.poll() is not None:
                raise StartFailed(f"nats-server ended with {self.poll()}: {self._log_tail()}")
            if time.monotonic() > deadline:
                self.kill()
                raise StartFailed(f"nats-server was not ready in time: {self._log_tail()}")
            time.sleep(0.005)
        self._port = urlparse(self.url).port or self._port

    def _is_ready(self, run: Path) -> bool:
        for ports in run.glob(f"*_{self.pid}.ports"):
            try:
                addresses = json.loads(ports.read_text())
                self.url, self.monitor_url = addresses["nats"][0], addresses["monitoring"][0]
            except (ValueError, KeyError, IndexError):
                return False  # half written
            return _healthy(self.monitor_url)
        return False

    def _log_tail(self) -> str:
        text = ""
        for name in ("nats.log", "nats.stderr"):
            try:
                text += (self.store / name).read_text(errors="replace")[-500:]
            except FileNotFoundError:
                pass
        return text.strip()[-800:] or "no output"


def _healthy(monitor_url: str) -> bool:
    connection = http.client.HTTPConnection(urlparse(monitor_url).netloc, timeout=2)
    try:
        connection.request("GET", "/healthz?js-enabled-only=true")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """A locked file descriptor. The lock lasts until the last process that inherited it has ended."""
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield descriptor
    except BlockingIOError:
        raise StoreLocked(f"another nats-server uses {path.parent}") from None
    finally:
        os.close(descriptor)


def _write_private(path: Path, text: str) -> None:
    """Replaces a file by one that only its owner may read, never readable for others in between."""
    new = path.with_suffix(".new")
    with open(os.open(new, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    new.replace(path)
