"""`python -m dispatcher`: any number of them. One is active, the others stand by and take over within two seconds."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from dataclasses import dataclass
from typing import Final

import uvloop

from broker.connection import Broker
from broker.errors import BrokerError
from broker.facts import Facts
from dispatcher.deadlines import Deadlines
from dispatcher.dispatch import Dispatcher
from dispatcher.leader import SoftLeader
from dispatcher.publisher import Publisher
from dispatcher.purge import Purger
from dispatcher.queued import Queued
from dispatcher.recovery import Recovery
from dispatcher.releases import Releases

log = logging.getLogger("dispatcher")

DRAIN: Final = 5.0
"""Seconds that triggers under way get after SIGTERM; what is left is redelivered."""


@dataclass(frozen=True)
class Config:
    """Order: flag, environment, default. Where NATS is: `broker.connection.Broker.from_env`."""

    grace: float
    """Seconds that a finished request stays readable."""


def configured(arguments: list[str]) -> Config:
    """Raises SystemExit for wrong usage."""
    parser = argparse.ArgumentParser(prog="python -m dispatcher", description=__doc__)
    parser.add_argument("--grace", type=float, default=float(os.environ.get("CORNSTALK_GRACE", "60")))
    return Config(**vars(parser.parse_args(arguments)))


class Service:
    """The parts of one dispatcher process, wired. Survives nothing and needs to survive nothing."""

    def __init__(self, broker: Broker, config: Config) -> None:
        facts = Facts(broker)
        queued = Queued(broker)
        publisher = Publisher(broker, facts, queued)
        self._deadlines = Deadlines(facts, publisher)
        self._releases = Releases(broker)
        self._purger = Purger(broker, facts, config.grace, self._releases)
        self._recovery = Recovery(broker, facts, self._deadlines, self._purger)
        self._dispatcher = Dispatcher(broker, facts, publisher, self._deadlines, self._purger, self._releases, queued)
        self._leader = SoftLeader(broker, self._become)
        self._pulling = False

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`; raises what ended a part of it."""
        await self._releases.start()
        services = (self._deadlines, self._purger, self._recovery, self._leader)
        parts = [asyncio.create_task(service.run()) for service in services]
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((*parts, stopping), return_when=asyncio.FIRST_COMPLETED)
            for part in parts:
                if part.done():
                    part.result()
        finally:
            for task in (*parts, stopping):
                task.cancel()
            await asyncio.gather(*parts, stopping, return_exceptions=True)
            await self._leader.resign()
            await self._dispatcher.close(DRAIN)
            await self._releases.close()

    async def _become(self, active: bool) -> None:
        pulls = self._dispatcher.pulls
        self._recovery.activate(active)
        if not active:
            await pulls.pause()
        elif self._pulling:
            await pulls.resume()
        else:
            self._pulling = True
            await pulls.start()


async def serve(config: Config) -> None:
    """Until SIGTERM or SIGINT, or NATS refuses the connection for good."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    broker = await Broker.from_env("dispatcher")
    broker.on_closed = stop.set
    try:
        await Service(broker, config).run(stop)
    finally:
        await broker.close()


def main() -> int:
    logging.basicConfig(level=os.environ.get("CORNSTALK_LOG", "INFO"), format="%(asctime)s %(name)s %(message)s")
    try:
        uvloop.run(serve(configured(sys.argv[1:])))
    except BrokerError as error:
        print(f"dispatcher: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
