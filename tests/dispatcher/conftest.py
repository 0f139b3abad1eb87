"""Real dispatcher processes against a real server, and a scripted driver and worker beside them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from broker.connection import Broker
from broker.server import Server
from tests.dispatcher.harness import Bench


@pytest.fixture
async def bench(nats_server: Server, broker: Broker) -> AsyncIterator[Bench]:
    """Starts processes on demand, ends them with the test."""
    bench = Bench(nats_server, broker)
    yield bench
    await bench.close()
