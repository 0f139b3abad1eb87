"""`python -m components --component ID`: one worker process of a component."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
import time
from dataclasses import dataclass
from typing import Final

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

    component: str
    """Id of the component whose items this worker claims."""
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
    parser.add_argument("--component", required=True)
    parser.add_argument("--sidecar", default=env.get("CORNSTALK_SIDECAR", ""))
    parser.add_argument("--host", default=env.get("CORNSTALK_HOST", "local"))
    parser.add_argument("--quota", type=int, default=int(env.get("CORNSTALK_WORKER_QUOTA", str(32 << 20))))
    parser.add_argument("--ack-wait", type=float, default=float(env.get("CORNSTALK_ACK_WAIT", "15")))
    parser.add_argument("--drain", type=float, default=25.0)
    args = parser.parse_args(argv)
    if not args.sidecar:
        parser.error("no sidecar: pass --sidecar PATH or set CORNSTALK_SIDECAR")
    return Config(args.component, args.sidecar, args.host, args.quota, args.ack_wait, args.drain)


async def serve(config: Config) -> None:
    """Loads the engine, claims items until SIGTERM, then drains."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for sig in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sig, stop.set)
    me = Identity(config.component, f"{config.host}-{os.getpid()}")
    broker = await Broker.from_env(f"worker {me.worker} {me.component}")
    broker.on_closed = stop.set
    try:
        stored = await Registry(broker, COMPONENTS).get(config.component)
        if stored is None:
            raise SetupError(f"no component {config.component!r} is registered: deploy an app that uses it")
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
        beat = asyncio.create_task(_beat(broker, config, worker))
        await stop.wait()
        beat.cancel()
        await worker.drain(config.drain)
        await engine.stop()
        await sidecar.close()
        await Registry(broker, WORKERS).delete(_beat_key(me))
    finally:
        await broker.close()


def _beat_key(me: Identity) -> str:
    return f"{me.component}.{me.worker}"


async def _beat(broker: Broker, config: Config, worker: Worker) -> None:
    workers = Registry(broker, WORKERS)
    started = time.time()
    while True:
        beat = WorkerBeat(
            worker=worker.me.worker,
            component=worker.me.component,
            host=config.host,
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
