"""Fixtures shared by all tests: real nats-servers on random ports, with stores of their own."""

from __future__ import annotations

import signal
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from broker import topology
from broker.connection import Broker
from broker.server import Server

pytest.register_assert_rewrite("tests.components.llm_suite")


def pytest_configure() -> None:
    """Who is told to end (a time limit) ends as by Ctrl-C: fixtures end the processes that they started.

    What a shell runs in its background ignores SIGINT, and so would every process that a test starts and interrupts.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[Server]:
    """A server of this test's own: it may be killed and started again."""
    server = Server(tmp_path / "nats")
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for tests that leave it alone and use subjects of their own (`request_id`)."""
    server = Server(tmp_path_factory.mktemp("nats"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def broker(nats_server: Server) -> AsyncIterator[Broker]:
    """Connected to `nats_server`, with the core topology."""
    connection = await Broker.connect(nats_server.url, name="test", token=nats_server.token)
    await topology.ensure_core(connection)
    yield connection
    await connection.close()


@pytest.fixture
async def shared_broker(shared_server: Server) -> AsyncIterator[Broker]:
    """Connected to `shared_server`, with the core topology."""
    connection = await Broker.connect(shared_server.url, name="test", token=shared_server.token)
    await topology.ensure_core(connection)
    yield connection
    await connection.close()


@pytest.fixture
def request_id() -> str:
    return uuid.uuid4().hex
