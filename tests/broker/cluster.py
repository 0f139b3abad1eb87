"""Three real nats-servers that replicate: for what JetStream says only there."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from broker import exec_guard
from broker.connection import Broker
from broker.discovery import find_server
from broker.errors import BrokerError
from tests.stack import free_port
from tests.waiting import eventually

NUMBERS: Final = (0, 1, 2)

CONFIG = """\
server_name: n{number}
host: "127.0.0.1"
port: {port}
http: "127.0.0.1:{monitor}"
jetstream {{ store_dir: "{store}", max_mem: 64MB, max_file: 4GB }}
cluster {{ name: c, host: "127.0.0.1", port: {route}, routes: [{routes}] }}
"""


class Cluster:
    """Ready when all three have a common leader. They die with the test; each may die before, and be started again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ports, self._routes, self._monitors = ([free_port() for _ in NUMBERS] for _ in range(3))
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.url = ",".join(f"nats://127.0.0.1:{port}" for port in self._ports)
        self.brokers: list[Broker] = []

    async def __aenter__(self) -> Self:
        everybody = ", ".join(f'"nats://127.0.0.1:{route}"' for route in self._routes)
        for number, port, route, monitor in zip(NUMBERS, self._ports, self._routes, self._monitors, strict=True):
            self._config(number).write_text(
                CONFIG.format(
                    number=number,
                    port=port,
                    monitor=monitor,
                    route=route,
                    routes=everybody,
                    store=self._directory / f"n{number}",
                )
            )
            self.start(number)
        try:
            async with asyncio.timeout(40):
                for url in self.url.split(","):
                    self.brokers.append(await self._connected(url))
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    def start(self, number: int) -> None:
        """For the first time, or again with what it had stored."""
        config = self._config(number)
        guard = [sys.executable, "-I", "-S", exec_guard.__file__, str(os.getpid())]
        command = [*guard, find_server().path, "-c", str(config), "-l", str(config.with_suffix(".log"))]
        self._processes[number] = subprocess.Popen(command)

    def kill(self, number: int) -> None:
        """SIGKILL; returns when it is gone."""
        self._processes[number].kill()
        self._processes[number].wait()

    async def leader(self, stream: str) -> int:
        """Number of the server that leads a stream now."""

        async def named() -> str | None:
            with suppress(BrokerError):
                return (await self._info(stream))["cluster"].get("leader")
            return None

        return int((await eventually(named, within=20) or "").removeprefix("n"))

    async def meta_leader(self) -> int:
        """Number of the server that leads the cluster's own group, as all that live agree."""

        async def agreed() -> str | None:
            named = {await asyncio.to_thread(self._meta_leader_by, n) for n in NUMBERS if self._lives(n)}
            return named.pop() if len(named) == 1 else None

        return int((await eventually(agreed, within=20) or "").removeprefix("n"))

    async def caught_up(self, streams: Sequence[str]) -> bool:
        """Whether all three servers hold all of these streams."""
        with suppress(BrokerError, KeyError):
            groups = [(await self._info(stream))["cluster"] for stream in streams]
            return all(len(g["replicas"]) == 2 and all(r["current"] for r in g["replicas"]) for g in groups)
        return False

    async def _info(self, stream: str) -> dict[str, Any]:
        (living, *_) = [broker for number, broker in zip(NUMBERS, self.brokers, strict=True) if self._lives(number)]
        return await living.api(f"STREAM.INFO.{stream}", timeout=1)

    def _lives(self, number: int) -> bool:
        return self._processes[number].poll() is None

    def _meta_leader_by(self, number: int) -> str | None:
        connection = http.client.HTTPConnection("127.0.0.1", self._monitors[number], timeout=2)
        try:
            connection.request("GET", "/jsz")
            leader: str | None = json.loads(connection.getresponse().read()).get("meta_cluster", {}).get("leader")
            return leader
        except OSError:
            return None
        finally:
            connection.close()

    def _config(self, number: int) -> Path:
        return self._directory / f"n{number}.conf"

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for broker in self.brokers:
            await broker.close()
        for number in self._processes:
            self.kill(number)

    async def _connected(self, url: str) -> Broker:
        while True:
            with suppress(BrokerError):
                return await Broker.connect(url, name="test", timeout=5)
            await asyncio.sleep(0.1)
