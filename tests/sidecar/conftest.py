"""Fixtures: a real sidecar process in a private directory, clients, and other processes that may be killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.server import Server
from sidecar.client import SidecarClient
from sidecar.messages import Owner
from tests.sidecar.actors import Actor
from tests.waiting import eventually

MIB = 1 << 20
OWNER = Owner("r", "n", 0, "a")


class Sidecar:
    """`python -m sidecar` on one socket path, through any number of lives."""

    def __init__(self, path: Path, nats: dict[str, str] | None = None) -> None:
        self.path = path
        self.log = path.with_suffix(".log")
        self._environment = {**os.environ, "CORNSTALK_NATS_URL": "nats://127.0.0.1:9", **(nats or {})}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, total: int = 64 * MIB) -> None:
        command = [sys.executable, "-m", "sidecar", "--socket", str(self.path), "--host", "here", "--bytes", str(total)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, env=self._environment, stderr=log)
        deadline = time.monotonic() + 30.0
        while not self._listens():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, "the sidecar does not listen"
            time.sleep(0.01)

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            return probe.connect_ex(str(self.path)) == 0

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def end(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        process, self.process = self.process, None
        process.send_signal(number)
        return process.wait(10)


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """Short, for socket paths are limited to 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="sc-") as name:
        yield Path(name)


@pytest.fixture
def sidecar(directory: Path) -> Iterator[Sidecar]:
    """One for this test alone: it may be killed."""
    yield from running(directory)


def running(directory: Path, nats: Server | None = None) -> Iterator[Sidecar]:
    """A sidecar with 64 MiB, that must end well and may log no traceback. Without `nats` it finds no server."""
    address = {}
    if nats is not None:
        address = {"CORNSTALK_NATS_URL": nats.url, "CORNSTALK_NATS_TOKEN_FILE": str(nats.token_file)}
    sidecar = Sidecar(directory / "s.sock", address)
    sidecar.start()
    yield sidecar
    if sidecar.process is not None:
        assert sidecar.end() == 0
    assert b"Traceback" not in sidecar.log.read_bytes(), sidecar.log.read_text()


Connect = Callable[..., Awaitable[SidecarClient]]


@pytest.fixture
async def connect(sidecar: Sidecar) -> AsyncIterator[Connect]:
    """Makes clients in this process; a small quota that cannot grow unless told otherwise. Drops OWNER's blocks."""
    clients: list[SidecarClient] = []

    async def make(name: str = "test", quota: int = 4 * MIB, limit: int | None = None) -> SidecarClient:
        client = await SidecarClient.connect(
            sidecar.path, name=name, quota=quota, limit=quota if limit is None else limit
        )
        clients.append(client)
        return client

    yield make
    for client in clients:
        await client.drop(OWNER)
        await client.close()


@pytest.fixture
def actor(sidecar: Sidecar) -> Iterator[Callable[..., Actor]]:
    """Makes processes with a client of their own."""
    actors: list[Actor] = []

    def make(quota: int = 4 * MIB, limit: int | None = None) -> Actor:
        actors.append(Actor(sidecar.path, quota, quota if limit is None else limit))
        return actors[-1]

    yield make
    for one in actors:
        one.kill()


@pytest.fixture
def settled() -> Callable[..., Awaitable[Any]]:
    """Waits until the statistics that a client sees are as told."""

    async def wait(client: SidecarClient, within: float = 5.0, **expected: int) -> Any:
        async def check() -> Any:
            stats = await client.stats()
            return stats if all(getattr(stats, name) == value for name, value in expected.items()) else None

        return await eventually(check, within=within)

    return wait


@contextmanager
def stopped(sidecar: Sidecar) -> Iterator[None]:
    os.kill(sidecar.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(sidecar.pid, signal.SIGCONT)
