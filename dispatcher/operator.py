"""`python -m dispatcher.operator`: owner of the topology, and the autoscaler. A second one waits for its lock."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from dataclasses import dataclass

import uvloop

from broker.connection import Broker
from broker.errors import BrokerError
from broker.requests import Message
from broker.subjects import QUEUE_HINT
from broker.topology import ACK_WAIT, ensure_core
from dispatcher.lock import Lock
from dispatcher.scaler import Scaler
from dispatcher.topology import Reconciler
from dispatcher.versions import Versions

log = logging.getLogger("operator")


@dataclass(frozen=True)
class Config:
    """Order: flag, environment, default. Where NATS is: `broker.connection.Broker.from_env`."""

    poll: float
    """Seconds between two rounds."""
    replicas: int
    """Worker processes of each component that is not autoscaled."""
    autoscale: bool
    """Whether the number of workers follows the load. Not where KEDA does that."""
    ack_wait: float
    """Seconds after which what a lost host held is delivered again; workers and gateways are told the same."""
    stream_copies: int
    """Servers of a NATS cluster that hold each stream."""


def configured(arguments: list[str]) -> Config:
    """Raises SystemExit for wrong usage."""
    parser = argparse.ArgumentParser(prog="python -m dispatcher.operator", description=__doc__)
    parser.add_argument("--poll", type=float, default=0.5)
    parser.add_argument("--replicas", type=int, default=int(os.environ.get("CORNSTALK_REPLICAS", "2")))
    parser.add_argument("--autoscale", action="store_true")
    parser.add_argument("--ack-wait", type=float, default=float(os.environ.get("CORNSTALK_ACK_WAIT", ACK_WAIT)))
    copies = int(os.environ.get("CORNSTALK_STREAM_COPIES", "1"))
    parser.add_argument("--stream-copies", type=int, choices=(1, 3, 5), default=copies)
    return Config(**vars(parser.parse_args(arguments)))


async def serve(config: Config) -> None:
    """Until SIGTERM or SIGINT, or NATS refuses the connection for good. Raises BrokerError at the start only."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    broker = await Broker.from_env("operator")
    broker.on_closed = stop.set
    try:
        await ensure_core(broker, drive_ack_wait=config.ack_wait, copies=config.stream_copies)
        log.info("core topology is there")
        lock = Lock(broker, "operator")
        working = [asyncio.create_task(lock.run()), asyncio.create_task(_rounds(broker, lock, config))]
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait((*working, stopping), return_when=asyncio.FIRST_COMPLETED)
        for task in (*working, stopping):
            task.cancel()
        results = await asyncio.gather(*working, stopping, return_exceptions=True)
        await lock.release()
        for error in results:
            if isinstance(error, Exception):
                raise error
    finally:
        await broker.close()


async def _rounds(broker: Broker, lock: Lock, config: Config) -> None:
    replicas = 1 if config.autoscale else config.replicas
    reconciler = Reconciler(broker, replicas, config.ack_wait, config.autoscale, config.stream_copies)
    scaler = Scaler(broker) if config.autoscale else None
    versions = Versions(broker)

    async def ask(message: Message) -> None:
        if lock.held:
            reconciler.ask(message.data.decode(errors="replace"))

    await broker.subscribe_core(QUEUE_HINT, ask)
    while True:
        if lock.held:
            try:
                await reconciler.round()
                if scaler is not None:
                    await scaler.round()
                await versions.round()
            except BrokerError as error:
                log.warning("round broken off: %s", error)
        await asyncio.sleep(config.poll)


def main() -> int:
    logging.basicConfig(level=os.environ.get("CORNSTALK_LOG", "INFO"), format="%(asctime)s %(name)s %(message)s")
    try:
        uvloop.run(serve(configured(sys.argv[1:])))
    except BrokerError as error:
        print(f"operator: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
