"""`python -m components --component ID`: one worker process of a component, or of several that share it.

Which components share a process is a choice of whoever deploys: the app, its queues and its answers are the same.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
import time
from dataclasses import dataclass
from typing import Final, Self

import uvloop

from broker.connection import Broker
from broker.errors import BrokerError
from broker.registry import Registry
from broker.subjects import COMPONENTS, WORKERS
from components.registry import engine_for
from components.worker import Identity, Worker
from cornstalk.errors import CornstalkError, SetupError
from cornstalk.messages import decode, encode
from cornstalk.records import ComponentRecord, WorkerBeat
from cornstalk.task import load_task
from sidecar.client import SidecarClient
from sidecar.errors import SidecarError

log = logging.getLogger("components")

BEAT_EVERY: Final = 2.0
"""Seconds between heartbeats; the bucket forgets a worker after 10."""


ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Defaults for the libraries that engines load: no model hub, and no thread pool per worker beside its neighbours'."""


@dataclass(frozen=True)
class Config:
    """Order: flag, environment, default."""

    components: tuple[str, ...]
    """Ids of the components whose items this process claims, with an engine for each."""
    sidecar: str
    """Path of the sidecar's socket on this host."""
    host: str
    quota: int
    """Bytes of arena that a worker whose task makes tensors asks for at its start; more on demand."""
    ack_wait: float
    """Seconds after which the broker redelivers an item without a sign of life; a sign goes out each third."""
    drain: float
    """Seconds that running items get to end after SIGTERM."""


def read_config(argv: list[str]) -> Config:
    env = os.environ
    parser = argparse.ArgumentParser(prog="python -m components", description=__doc__)
    parser.add_argument(
        "--component", action="append", required=True, metavar="ID", help="may be given again: one process for several"
    )
    parser.add_argument("--sidecar", default=env.get("CORNSTALK_SIDECAR", ""))
    parser.add_argument("--host", default=env.get("CORNSTALK_HOST", "local"))
    parser.add_argument("--quota", type=int, default=int(env.get("CORNSTALK_WORKER_QUOTA", str(32 << 20))))
    parser.add_argument("--ack-wait", type=float, default=float(env.get("CORNSTALK_ACK_WAIT", "15")))
    parser.add_argument("--drain", type=float, default=25.0)
    args = parser.parse_args(argv)
    if not args.sidecar:
        parser.error("no sidecar: pass --sidecar PATH or set CORNSTALK_SIDECAR")
    return Config(tuple(dict.fromkeys(args.component)), args.sidecar, args.host, args.quota, args.ack_wait, args.drain)


async def serve(config: Config) -> None:
    """Loads the engines, claims items until SIGTERM, then drains."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for sig in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sig, stop.set)
    broker = await Broker.from_env(f"worker {config.host}-{os.getpid()} {' '.join(config.components)}")
    broker.on_closed = stop.set
    try:
        served = [await Served.start(component, broker, config) for component in config.components]
        await stop.wait()
        await asyncio.gather(*(one.end(config.drain) for one in served))
    finally:
        await broker.close()


class Served:
    """A component that this process serves. Nothing of it outlives the process but what is stored."""

    def __init__(self, worker: Worker, beat: asyncio.Task[None]) -> None:
        self._worker, self._beat = worker, beat

    @classmethod
    async def start(cls, component: str, broker: Broker, config: Config) -> Self:
        """Claims items from here on. Raises SetupError, SidecarError, BrokerError."""
        me = Identity(component, f"{config.host}-{os.getpid()}")
        stored = await Registry(broker, COMPONENTS).get(component)
        if stored is None:
            raise SetupError(f"no component {component!r} is registered: deploy an app that uses it")
        record = decode(ComponentRecord, stored.data)
        task = load_task(record.task, record.identity)
        engine = engine_for(task)
        await engine.start()
        makes_tensors = any(port.kind == "tensor" or port.tensors for port in type(task).outputs.values())
        quota = config.quota if makes_tensors else 0
        sidecar = await SidecarClient.connect(config.sidecar, name=me.worker, quota=quota)
        worker = Worker(me, task, engine, broker, sidecar, config.ack_wait)
        await worker.start()
        log.info("ready: %s", me.component)
        return cls(worker, asyncio.create_task(_beat(broker, config.host, worker)))

    async def end(self, drain: float) -> None:
        """What runs has `drain` seconds to end."""
        worker = self._worker
        self._beat.cancel()
        await worker.drain(drain)
        await worker.engine.stop()
        await worker.sidecar.close()
        await Registry(worker.broker, WORKERS).delete(_beat_key(worker.me))


def _beat_key(me: Identity) -> str:
    return f"{me.component}.{me.worker}"


async def _beat(broker: Broker, host: str, worker: Worker) -> None:
    workers = Registry(broker, WORKERS)
    started = time.time()
    while True:
        beat = WorkerBeat(
            worker=worker.me.worker,
            component=worker.me.component,
            host=host,
            pid=os.getpid(),
            slots=worker.engine.slots,
            running=worker.running,
            ready=True,
            started_at=started,
            stats=worker.engine.stats(),
        )
        try:
            await workers.put(_beat_key(worker.me), encode(beat))
        except Exception as error:  # a heartbeat that fails is not worth a worker: the next one follows
            log.warning("no heartbeat: %s", type(error).__name__)
        await asyncio.sleep(BEAT_EVERY)


def main() -> None:
    logging.basicConfig(level=os.environ.get("CORNSTALK_LOG", "INFO"), format="%(asctime)s %(name)s %(message)s")
    config = read_config(sys.argv[1:])
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        uvloop.run(serve(config))
    except (CornstalkError, BrokerError, SidecarError) as error:
        print(f"cannot start: {error}", file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
