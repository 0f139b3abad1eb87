"""A connection to NATS for commands that need nothing else: the tree of a store, or what the environment names."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cornstalk.cli.errors import UNREACHABLE, CliError
from cornstalk.cli.state import running_state, store_path

if TYPE_CHECKING:
    from broker.connection import Broker


@asynccontextmanager
async def connected(store: Path | None) -> AsyncIterator[Broker]:
    """CORNSTALK_NATS_URL and CORNSTALK_NATS_TOKEN_FILE, else what runs in the store. Raises CliError."""
    from broker.connection import Broker
    from broker.errors import BrokerError, ConnectFailed

    url, token_file = os.environ.get("CORNSTALK_NATS_URL"), os.environ.get("CORNSTALK_NATS_TOKEN_FILE")
    if not url:
        state = running_state(store_path(store))
        url, token_file = state.nats_url, token_file or state.nats_token_file
    try:
        token = Path(token_file).read_text().strip() if token_file else None
    except OSError as error:
        raise CliError(f"cannot read {token_file}", why=error.strerror or "", exit_code=UNREACHABLE) from error
    try:
        broker = await Broker.connect(url, name="cornstalk batch", token=token)
    except ConnectFailed as error:
        raise CliError(str(error), next="cornstalk up", exit_code=UNREACHABLE) from error
    try:
        yield broker
    except BrokerError as error:
        raise CliError(f"NATS does not answer: {error}", next="cornstalk logs nats", exit_code=UNREACHABLE) from error
    finally:
        await broker.close()
