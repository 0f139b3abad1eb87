"""What a tree consists of: the command line, environment and log of each process. Starts nothing."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broker.server import Server
from cornstalk.cli.errors import USAGE, CliError
from cornstalk.cli.paths import child_argv, child_env
from cornstalk.cli.process import Child
from cornstalk.cli.state import admin_token_file, socket_path
from cornstalk.cli.workers import SCALE_IN_DRAIN

LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True)
class Config:
    """Flags of `up`."""

    store: Path
    port: int
    """Of the first gateway; the others take the next ones. 0: free ones."""
    gateways: int
    dispatchers: int
    workers: int | None
    """Worker processes per component, instead of what its record asks for."""
    host: str
    sidecar_bytes: int | None
    apps: tuple[Path, ...]
    """Deployed once the tree is ready."""
    autoscale: bool = False
    """Whether the number of worker processes of each component follows its load."""

    @property
    def logs(self) -> Path:
        return self.store / "logs"


class Nats:
    """The embedded nats-server as a process of the tree: always the same port, token and store."""

    name = "nats"

    def __init__(self, store: Path) -> None:
        self.server = Server(store / "nats")

    @property
    def pid(self) -> int:
        return self.server.pid

    def poll(self) -> int | None:
        return self.server.poll()

    def start(self) -> None:
        self.server.start()

    def terminate(self) -> None:
        os.kill(self.server.pid, signal.SIGTERM)

    def kill(self) -> None:
        os.kill(self.server.pid, signal.SIGKILL)


class Tree:
    """Makes the processes of one tree. Its environment is complete once `nats_url` is known."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.admin_token_file = admin_token_file(config.store)
        self.socket = socket_path(config.store)
        self.ports = _ports(config.port, config.gateways)
        self.nats = None if os.environ.get("CORNSTALK_NATS_URL") else Nats(config.store)

    @property
    def urls(self) -> list[str]:
        return [f"http://{LOOPBACK}:{port}" for port in self.ports]

    @property
    def nats_url(self) -> str:
        return self.nats.server.url if self.nats else os.environ["CORNSTALK_NATS_URL"]

    @property
    def nats_token_file(self) -> str:
        return str(self.nats.server.token_file) if self.nats else os.environ.get("CORNSTALK_NATS_TOKEN_FILE", "")

    def nats_token(self) -> str | None:
        return Path(self.nats_token_file).read_text().strip() if self.nats_token_file else None

    def sidecar(self) -> Child:
        size = self.config.sidecar_bytes
        size_flag = [] if size is None else ["--bytes", str(size)]
        where = ["--socket", str(self.socket), "--host", self.config.host]
        return self._child("sidecar", "sidecar", *where, *size_flag)

    def operator(self) -> Child:
        return self._child("operator", "dispatcher.operator", *(["--autoscale"] if self.config.autoscale else []))

    def dispatchers(self) -> list[Child]:
        return [self._child(f"dispatcher-{i}", "dispatcher") for i in range(self.config.dispatchers)]

    def gateways(self) -> list[Child]:
        return [
            self._child(f"gateway-{i}", "gateway", "--host", LOOPBACK, "--port", str(port))
            for i, port in enumerate(self.ports)
        ]

    def worker(self, component: str, index: int) -> Child:
        drain = ["--drain", str(SCALE_IN_DRAIN)]
        return self._child(f"{component}.{index}", "components", "--component", component, *drain)

    def _child(self, name: str, module: str, *args: str) -> Child:
        return Child(name, child_argv(module, *args), self._environment(), self.config.logs)

    def _environment(self) -> dict[str, str]:
        token_file = {"CORNSTALK_NATS_TOKEN_FILE": self.nats_token_file} if self.nats_token_file else {}
        return {
            **child_env(os.environ),
            **token_file,
            "CORNSTALK_NATS_URL": self.nats_url,
            "CORNSTALK_HOST": self.config.host,
            "CORNSTALK_SIDECAR": str(self.socket),
            "CORNSTALK_ADMIN_TOKEN_FILE": str(self.admin_token_file),
            # A resumed request may be driven by another gateway: sets of strings must have the same order in all.
            "PYTHONHASHSEED": str(_hash_seed(self.admin_token_file.read_bytes())),
        }


def _hash_seed(secret: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(secret, digest_size=4, person=b"hashseed").digest(), "big")


def _ports(first: int, count: int) -> list[int]:
    """Raises CliError when one is taken: a stranger's answer must not pass for our gateway's."""
    sockets = []
    try:
        for index in range(count):
            wanted = first + index if first else 0
            sockets.append(sock := socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind((LOOPBACK, wanted))
            except (OSError, OverflowError) as error:
                why = getattr(error, "strerror", None) or str(error)
                raise CliError(
                    f"cannot listen on port {wanted}", why=why, next="cornstalk up --port 0", exit_code=USAGE
                ) from error
        return [sock.getsockname()[1] for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()
