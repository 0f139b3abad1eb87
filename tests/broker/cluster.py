"""Three real nats-servers that replicate: for what JetStream says only there."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from broker import exec_guard
from broker.connection import Broker
from broker.discovery import find_server
from broker.errors import BrokerError
from tests.stack import free_port

CONFIG = """\
server_name: n{number}
host: "127.0.0.1"
port: {port}
jetstream {{ store_dir: "{store}", max_mem: 64MB, max_file: 1GB }}
cluster {{ name: c, host: "127.0.0.1", port: {route}, routes: [{routes}] }}
"""


class Cluster:
    """Ready when all three have a common leader. They die with the test."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []
        self.brokers: list[Broker] = []

    async def __aenter__(self) -> Self:
        ports, routes = [free_port() for _ in range(3)], [free_port() for _ in range(3)]
        everybody = ", ".join(f'"nats://127.0.0.1:{route}"' for route in routes)
        for number in range(3):
            config = self._directory / f"n{number}.conf"
            store = self._directory / f"n{number}"
            config.write_text(
                CONFIG.format(number=number, port=ports[number], route=routes[number], routes=everybody, store=store)
            )
            guard = [sys.executable, "-I", "-S", exec_guard.__file__, str(os.getpid())]
            command = [*guard, find_server().path, "-c", str(config), "-l", str(config.with_suffix(".log"))]
            self._processes.append(subprocess.Popen(command))  # noqa: ASYNC220
        try:
            async with asyncio.timeout(40):
                for port in ports:
                    self.brokers.append(await self._connected(f"nats://127.0.0.1:{port}"))
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for broker in self.brokers:
            await broker.close()
        for process in self._processes:
            process.kill()
            process.wait()

    async def _connected(self, url: str) -> Broker:
        while True:
            with suppress(BrokerError):
                return await Broker.connect(url, name="test", timeout=5)
            await asyncio.sleep(0.1)
