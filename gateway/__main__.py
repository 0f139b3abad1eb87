"""`python -m gateway`: one gateway process. Any number of them serve the same apps and requests."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvicorn
import uvloop
from fastapi import FastAPI

from broker.connection import Broker
from broker.errors import BrokerError
from broker.topology import ACK_WAIT
from gateway import autoscale, deadletters, openapi, resumable, retries, websocket
from gateway.concurrency import ConcurrencyLimit
from gateway.errors import install
from gateway.http import router
from gateway.limits import BodyLimit
from gateway.origins import Origins
from gateway.quarantine import quarantine
from gateway.service import Service
from gateway.sockets import CONNECTIONS
from gateway.sse import directly
from gateway.uploads import BODY_LIMIT
from gateway.watchdog import Watchdog

PONG_WAIT: Final = 60.0
"""Seconds after which a WebSocket client that does not answer pings is gone; while its input waits it reads none."""

GC_EVERY: Final = (10_000, 10, 10)
"""Thresholds of the cycle collector. Python's, 700 first, cost 2 to 4 us of each chunk (docs/measurements.md, SSE)."""


@dataclass(frozen=True)
class Config:
    """Order: flag, environment, default."""

    host: str
    port: int
    admin_token: str
    """Who has it may deploy and remove apps."""
    ack_wait: float
    """Seconds after which another gateway drives a durable request of one that died; the operator is told the same."""
    connections: int
    """WebSocket connections at once, and HTTP requests beside them."""
    origins: Origins
    """Other web pages than its own that may use it."""


def read_config(argv: list[str]) -> Config:
    env = os.environ
    parser = argparse.ArgumentParser(prog="python -m gateway", description=__doc__)
    parser.add_argument("--host", default=env.get("CORNSTALK_GATEWAY_HOST", "127.0.0.1"))
    parser.add_argument("--port", type=int, default=int(env.get("CORNSTALK_GATEWAY_PORT", "8080")))
    parser.add_argument("--admin-token-file", default=env.get("CORNSTALK_ADMIN_TOKEN_FILE", ""))
    parser.add_argument("--ack-wait", type=float, default=float(env.get("CORNSTALK_ACK_WAIT", ACK_WAIT)))
    parser.add_argument("--connections", type=int, default=int(env.get("CORNSTALK_CONNECTIONS", CONNECTIONS)))
    parser.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="web pages of this origin may use the gateway, of any with *; may be given again "
        "(default: CORNSTALK_ALLOW_ORIGINS, with spaces between them, or none)",
    )
    args = parser.parse_args(argv)
    if not args.admin_token_file:
        parser.error("no admin token: pass --admin-token-file FILE or set CORNSTALK_ADMIN_TOKEN_FILE")
    try:
        token = Path(args.admin_token_file).read_text().strip()
    except OSError as error:
        parser.error(f"the admin token cannot be read: {error}")
    if len(token) < 16:
        parser.error("the admin token has fewer than 16 characters")
    try:
        origins = Origins(*(args.allow_origin or env.get("CORNSTALK_ALLOW_ORIGINS", "").split()))
    except ValueError as error:
        parser.error(str(error))
    return Config(args.host, args.port, token, args.ack_wait, args.connections, origins)


def make_app(service: Callable[[], Awaitable[Service]], origins: Origins) -> FastAPI:
    """The ASGI application over a service that is made at its start."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.service = await service()
        app.state.described = openapi.Described()
        await app.state.service.start()
        yield
        await app.state.service.close()

    app = FastAPI(lifespan=lifespan, redirect_slashes=False, openapi_url=None)
    app.state.origins = origins
    app.include_router(router)
    app.include_router(openapi.router)
    app.include_router(websocket.router)
    app.include_router(deadletters.router)
    app.include_router(retries.router)
    app.include_router(autoscale.router)
    app.include_router(resumable.router)
    app.add_middleware(BodyLimit, limit=BODY_LIMIT)
    install(app)
    return app


class _Server(uvicorn.Server):
    """Sends the clients of WebSockets elsewhere before it stops."""

    def __init__(self, app: FastAPI, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        await self._app.state.service.drain()
        await super().shutdown(sockets)


async def serve(config: Config) -> None:
    def closed() -> None:
        server.should_exit = True  # NATS refuses the token for good: a supervisor starts it again with the new one

    async def service() -> Service:
        broker = await Broker.from_env("gateway")
        broker.on_closed = closed
        return Service(broker, config.admin_token, config.ack_wait, config.connections)

    app = make_app(service, config.origins)
    server = _Server(
        app,
        uvicorn.Config(
            directly(config.origins.over(ConcurrencyLimit(app, config.connections))),
            host=config.host,
            port=config.port,
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=20,
            lifespan="on",
            ws="websockets-sansio",
            ws_max_size=websocket.FRAME_LIMIT,
            ws_ping_timeout=PONG_WAIT,
            ws_per_message_deflate=False,  # audio does not shrink, and each connection would cost a quarter MiB
        ),
    )
    await server.serve()


def _ended(*_: object) -> None:
    """The server raises the signal once more when it has stopped: that is a good end, as for the other services."""
    raise SystemExit(0)


def main() -> None:
    logging.basicConfig(level=os.environ.get("CORNSTALK_LOG", "INFO"), format="%(asctime)s %(name)s %(message)s")
    config = read_config(sys.argv[1:])
    signal.signal(signal.SIGTERM, _ended)
    Watchdog.shared().on_stuck = quarantine
    gc.freeze()  # what the imports made stays: no full collection need look through it
    gc.set_threshold(*GC_EVERY)
    try:
        uvloop.run(serve(config))
    except BrokerError as error:
        print(f"cannot start: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise SystemExit(0) from None


if __name__ == "__main__":
    main()
