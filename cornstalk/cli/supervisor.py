"""The process tree of `cornstalk up`: starts it, keeps it running, writes down what runs, stops it in order."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from broker.connection import Broker
from broker.errors import BrokerError, ServerError, StoreLocked
from broker.registry import Registry
from broker.subjects import COMPONENTS, WORKERS
from cornstalk.cli.errors import TIMED_OUT, UNREACHABLE, CliError
from cornstalk.cli.process import Kept, Process
from cornstalk.cli.procfs import start_time
from cornstalk.cli.ready import Readiness
from cornstalk.cli.state import State, write_state
from cornstalk.cli.tree import Tree
from cornstalk.cli.workers import DRAIN, Busy, Read, Workers
from cornstalk.messages import decode
from cornstalk.records import ComponentRecord, WorkerBeat

log = logging.getLogger("cornstalk.up")

READY_WITHIN: Final = 30.0
GRACE: Final = 10.0
"""Seconds that a service gets to end after SIGTERM; a worker gets DRAIN."""


class Supervisor:
    """One tree. It dies with this process, however that ends; its durable state stays in the store."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self._layers: list[list[Kept]] = []  # in the order of starting
        self._workers: Workers | None = None
        self._ready = False
        self._stop = asyncio.Event()

    async def run(self, when_up: Callable[[], Awaitable[None]]) -> None:
        """Until SIGTERM, SIGINT or SIGHUP; a second one kills. `when_up` runs before the tree is declared ready.

        Raises CliError when the tree does not come up.
        """
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)
        broker: Broker | None = None
        tasks: list[asyncio.Task[None]] = []
        try:
            await self._start_nats()
            self._start([self.tree.sidecar()])
            self._start([self.tree.operator()])
            self._start(self.tree.dispatchers())
            self._start(self.tree.gateways())
            broker = await self._connect()
            config = self.tree.config
            busy = _busy(broker, config.host)
            self._workers = Workers(_reader(broker), busy, self._worker, config.workers, self._write)
            tasks.append(asyncio.create_task(self._workers.follow()))
            await self._until_ready()
            if not self._stop.is_set():
                await when_up()
                self._ready = True
                self._write()
            await self._stop_or_failure(tasks)
        finally:
            for task in tasks:
                task.cancel()
            await self._stop_all(broker)

    async def _start_nats(self) -> None:
        """Waits for the nats-server of a supervisor that was killed a moment ago: it may still be on its way out."""
        if self.tree.nats is None:
            return
        end = time.monotonic() + GRACE
        while True:
            try:
                return self._start([self.tree.nats])
            except StoreLocked as error:
                if time.monotonic() > end:
                    raise CliError("nats-server does not start", why=str(error)) from error
                await asyncio.sleep(0.1)
            except ServerError as error:
                raise CliError("nats-server does not start", why=str(error)) from error

    def _start(self, processes: Iterable[Process]) -> None:
        layer = [Kept(process, self._write) for process in processes]
        for kept in layer:
            kept.start()
        self._layers.append(layer)

    def _worker(self, component: str, index: int) -> Kept:
        return Kept(self.tree.worker(component, index), self._write)

    async def _connect(self) -> Broker:
        try:
            return await Broker.connect(self.tree.nats_url, name="supervisor", token=self.tree.nats_token())
        except BrokerError as error:
            raise CliError("NATS does not answer", why=str(error), exit_code=UNREACHABLE) from error

    async def _until_ready(self) -> None:
        readiness = Readiness(self.tree.urls, self.tree.socket)
        ready = asyncio.create_task(readiness.wait())
        stop = asyncio.create_task(self._stop.wait())
        try:
            done, _ = await asyncio.wait({ready, stop}, timeout=READY_WITHIN, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                raise CliError(
                    f"the tree was not ready within {READY_WITHIN:.0f} s",
                    why=", ".join(f"{name}: {why}" for name, why in readiness.missing.items()),
                    next=f"read the logs in {self.tree.config.logs}",
                    exit_code=TIMED_OUT,
                )
        finally:
            ready.cancel()
            stop.cancel()

    async def _stop_or_failure(self, tasks: list[asyncio.Task[None]]) -> None:
        stop = asyncio.create_task(self._stop.wait())
        done, _ = await asyncio.wait({stop, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        for task in done:
            task.result()

    def _all(self) -> list[Kept]:
        workers = self._workers.kept if self._workers else []
        return [*(kept for layer in self._layers for kept in layer), *workers]

    def _write(self) -> None:
        write_state(
            self.tree.config.store,
            State(
                pid=os.getpid(),
                started=start_time(os.getpid()) or 0,
                ready=self._ready,
                urls=self.tree.urls,
                nats_url=self.tree.nats_url,
                nats_token_file=self.tree.nats_token_file,
                admin_token_file=str(self.tree.admin_token_file),
                sidecar=str(self.tree.socket),
                processes=[kept.running for kept in self._all()],
            ),
        )

    def _on_signal(self) -> None:
        if self._stop.is_set():
            log.warning("asked twice to stop: killing all")
            for kept in self._all():
                kept.kill()
        self._stop.set()

    async def _stop_all(self, broker: Broker | None) -> None:
        """Workers first, nats-server last: each finds what it needs to end in order."""
        if self._workers:
            await self._workers.stop(DRAIN)
        if broker:
            await broker.close()
        for layer in reversed(self._layers):
            await asyncio.gather(*(kept.stop(GRACE) for kept in layer))
        (self.tree.config.store / "state.json").unlink(missing_ok=True)
        if self.tree.socket.parent != self.tree.config.store:
            shutil.rmtree(self.tree.socket.parent)


def _reader(broker: Broker) -> Read:
    registry = Registry(broker, COMPONENTS)

    async def read() -> dict[str, ComponentRecord]:
        return {key: decode(ComponentRecord, entry.data) for key, entry in (await registry.entries()).items()}

    return read


def _busy(broker: Broker, host: str) -> Busy:
    registry = Registry(broker, WORKERS)

    async def busy() -> dict[int, int]:
        beats = [decode(WorkerBeat, entry.data) for entry in (await registry.entries()).values()]
        return {beat.pid: beat.running for beat in beats if beat.host == host}

    return busy
