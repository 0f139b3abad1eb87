"""The real processes of Cornstalk, for tests and benchmarks.

Each child is started by its module, as `cornstalk up` does, so that a test can crash one at a named point and start it
again as if nothing had happened.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from broker.connection import Broker
from broker.server import Server
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parent.parent


def free_port() -> int:
    """Below the ports that the system gives to outgoing connections: a child that restarts must find it free again."""
    while True:
        port = random.randrange(12_000, 32_000)
        with socket.socket() as s, suppress(OSError):
            s.bind(("127.0.0.1", port))
            return port


@dataclass
class Child:
    """One process. `start` may be called again after its death."""

    name: str
    argv: list[str]
    env: dict[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    exits: list[int] = field(default_factory=list)  # of each life that `Stack.keep_alive` saw end

    def start(self, **env: str) -> Self:
        """Starts it, or starts it again once it has died."""
        if self.process is not None:
            self.process.wait(10)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *self.argv], env=self.env | env, stdout=log, stderr=log, cwd=ROOT
            )
        return self

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self, sig: int = signal.SIGKILL) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(sig)

    def wait(self, within: float) -> int | None:
        assert self.process is not None
        try:
            return self.process.wait(within)
        except subprocess.TimeoutExpired:
            return None


@dataclass
class Stack:
    """Two dispatchers, two workers per component, one gateway unless told otherwise. Everything is gone on exit."""

    gateways: int = 1
    dispatchers: int = 2
    replicas: int = 2
    sidecar_bytes: int = 256 << 20
    env: dict[str, str] = field(default_factory=dict)
    nats_url: str = ""  # of servers that somebody else runs, without a token
    crash: dict[str, str] = field(default_factory=dict)  # child name -> CRASH_AT of its first life
    children: dict[str, Child] = field(default_factory=dict)

    async def __aenter__(self) -> Self:
        self._dir = tempfile.TemporaryDirectory(prefix="cs-", ignore_cleanup_errors=True)
        self.home = Path(self._dir.name)
        self.server = Server(self.home / "nats")
        if not self.nats_url:
            self.server.start()
        token = self.home / "admin.token"
        token.write_text(secrets.token_hex(16))
        token.chmod(0o600)
        self.admin = token.read_text()
        self.socket = str(self.home / "s" / "sidecar.sock")
        self._env = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "CORNSTALK_NATS_URL": self.nats_url or self.server.url,
            "CORNSTALK_NATS_TOKEN_FILE": "" if self.nats_url else str(self.server.token_file),
            "CORNSTALK_ADMIN_TOKEN_FILE": str(token),
            "CORNSTALK_SIDECAR": self.socket,
            "CORNSTALK_HOST": "local",
            "OMP_NUM_THREADS": "1",
            **self.env,
        }
        try:
            await self._start()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if kind is not None:
            print(self.logs(), file=sys.stderr)
        await self._stop()

    async def _start(self) -> None:
        url, token = self.nats_url or self.server.url, self.server.token or None
        self.broker = await Broker.connect(url, name="test", token=token)
        self.add("operator", "dispatcher.operator")
        self.add("sidecar", "sidecar", "--socket", self.socket, "--host", "local", "--bytes", str(self.sidecar_bytes))
        for i in range(self.dispatchers):
            self.add(f"dispatcher{i}", "dispatcher")
        self.ports = [free_port() for _ in range(self.gateways)]
        for i, port in enumerate(self.ports):
            self.add(f"gateway{i}", "gateway", "--port", str(port))
        self.clients = [
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) for port in self.ports
        ]
        for i in range(self.gateways):
            await self.wait_ready(i)
        await eventually(lambda: Path(self.socket).exists(), within=20)

    async def _stop(self) -> None:
        for client in getattr(self, "clients", []):
            await client.aclose()
        if hasattr(self, "broker"):
            await self.broker.close()
        for child in self.children.values():
            child.kill(signal.SIGKILL)
        for child in self.children.values():
            child.wait(10)
        self.server.kill()
        self._dir.cleanup()

    def add(self, name: str, *argv: str, **env: str) -> Child:
        """Starts one more child."""
        child = self.children[name] = Child(name, list(argv), self._env, self.home / f"{name}.log")
        crash = {"CRASH_AT": self.crash[name]} if name in self.crash else {}
        return child.start(**env, **crash)

    async def wait_ready(self, gateway: int = 0) -> None:
        async def ready() -> bool:
            try:
                return (await self.clients[gateway].get("/readyz")).status_code == 200
            except httpx.TransportError:
                return False

        await eventually(ready, within=20, every=0.02)

    async def deploy(self, path: Path | str, *, workers: bool = True) -> dict[str, Any]:
        """Deploys an app file and starts the workers of components that have none yet."""
        response = await self.clients[0].post(
            "/apps", content=Path(path).read_bytes(), headers={"Authorization": f"Bearer {self.admin}"}
        )
        assert response.status_code == 201, response.text
        body: dict[str, Any] = response.json()
        if workers:
            for component in body["components"]:
                self.start_workers(component)
            for component in body["components"]:
                await self.wait_workers(component, self.replicas)
        return body

    def start_workers(self, component: str) -> None:
        for i in range(self.replicas):
            if f"{component}@{i}" not in self.children:
                self.add(f"{component}@{i}", "components", "--component", component)

    def start_together(self, name: str, components: Iterable[str]) -> None:
        """Processes each of which serves all of these components."""
        named = [word for component in components for word in ("--component", component)]
        for i in range(self.replicas):
            self.add(f"{name}@{i}", "components", *named)

    async def wait_workers(self, component: str, count: int, within: float = 60.0) -> None:
        async def there() -> bool:
            found = {c["id"]: c for c in (await self.clients[0].get("/components")).json()["components"]}
            return sum(w["ready"] for w in found[component]["workers"]) >= count

        await eventually(there, within=within, every=0.2)  # each look takes time from those that start

    async def keep_alive(self, stop: asyncio.Event) -> None:
        """Starts dead children again, without their crash point, until `stop`; what a supervisor does."""
        while not stop.is_set():
            for child in self.children.values():
                if not child.alive:
                    child.exits.append(child.wait(0) or 0)
                    child.start()
            await asyncio.sleep(0.02)

    def logs(self, tail: int = 2000) -> str:
        return "\n".join(f"--- {p.name}\n{p.read_text()[-tail:]}" for p in sorted(self.home.glob("*.log")))
