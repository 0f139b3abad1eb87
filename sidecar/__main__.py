"""`python -m sidecar`: the daemon of this host. SIGTERM and SIGINT end it; clients reconnect to the next one."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import resource
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvloop

from sidecar import arena
from sidecar.allocator import UNIT
from sidecar.daemon import Daemon
from sidecar.errors import StartFailed
from sidecar.uplink import Uplink

log = logging.getLogger(__name__)

DEFAULT_BYTES: Final = 1 << 30


@dataclass(frozen=True)
class Config:
    """Flag > environment > default. Where NATS is: see `broker.connection.Broker.from_env`."""

    socket: Path
    host: str
    total: int


def configured(arguments: list[str]) -> Config:
    """Raises SystemExit for wrong usage."""
    parser = argparse.ArgumentParser(prog="python -m sidecar", description="Tensors of one host, in shared memory.")
    parser.add_argument("--socket", default=os.environ.get("CORNSTALK_SIDECAR"), help="path of the Unix socket")
    parser.add_argument("--host", default=os.environ.get("CORNSTALK_HOST", "local"), help="name of this host")
    parser.add_argument("--bytes", type=int, default=DEFAULT_BYTES, help="memory for tensors (default 1 GiB)")
    flags = parser.parse_args(arguments)
    if not flags.socket:
        parser.error("say where the socket is: --socket PATH or CORNSTALK_SIDECAR")
    if flags.bytes < 1 << 20:
        parser.error("--bytes must be at least 1 MiB")
    return Config(Path(flags.socket).absolute(), flags.host, flags.bytes // UNIT * UNIT)


async def serve(config: Config) -> None:
    """Until SIGTERM or SIGINT. Raises StartFailed."""
    available = arena.available()
    if config.total > available:
        raise StartFailed(f"--bytes {config.total}: only {available} bytes of memory are available on this host")
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    uplink = Uplink()
    daemon = Daemon(config.socket, config.host, config.total, uplink.nak)
    publishing = asyncio.create_task(uplink.run(daemon, f"sidecar-{config.host}"))
    waiting = asyncio.create_task(ended.wait())
    try:
        await asyncio.wait((publishing, waiting), return_when=asyncio.FIRST_COMPLETED)
        if publishing.done():
            publishing.result()
    finally:
        await _end(publishing)
        await _end(waiting)
        await daemon.close()


async def _end(task: asyncio.Task[Any]) -> None:
    # again and again, for asyncio.wait_for (in the NATS client) loses a cancellation that meets a result
    while not task.done():
        task.cancel()
        await asyncio.wait((task,), timeout=0.1)
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("at the end: %s", type(error).__name__)


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s sidecar %(levelname)s %(message)s")
    config = configured(sys.argv[1:])
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # three for each client, one for each arena
    try:
        uvloop.run(serve(config))
    except StartFailed as error:
        print(f"sidecar: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
