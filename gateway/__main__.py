"""`python -m gateway`: one gateway process. Any number of them serve the same apps and requests."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn
import uvloop
from fastapi import FastAPI

from broker.connection import Broker
from broker.errors import BrokerError
from broker.topology import ACK_WAIT
from gateway import deadletters
from gateway.errors import install
from gateway.http import router
from gateway.limits import BodyLimit
from gateway.service import Service
from gateway.uploads import BODY_LIMIT


@dataclass(frozen=True)
class Config:
    """Order: flag, environment, default."""

    host: str
    port: int
    admin_token: str
    """Who has it may deploy and remove apps."""
    ack_wait: float
    """Seconds after which another gateway drives a durable request of one that died; the operator is told the same."""


def read_config(argv: list[str]) -> Config:
    env = os.environ
    parser = argparse.ArgumentParser(prog="python -m gateway", description=__doc__)
    parser.add_argument("--host", default=env.get("CORNSTALK_GATEWAY_HOST", "127.0.0.1"))
    parser.add_argument("--port", type=int, default=int(env.get("CORNSTALK_GATEWAY_PORT", "8080")))
    parser.add_argument("--admin-token-file", default=env.get("CORNSTALK_ADMIN_TOKEN_FILE", ""))
    parser.add_argument("--ack-wait", type=float, default=float(env.get("CORNSTALK_ACK_WAIT", ACK_WAIT)))
    args = parser.parse_args(argv)
    if not args.admin_token_file:
        parser.error("no admin token: pass --admin-token-file FILE or set CORNSTALK_ADMIN_TOKEN_FILE")
    try:
        token = Path(args.admin_token_file).read_text().strip()
    except OSError as error:
        parser.error(f"the admin token cannot be read: {error}")
    if len(token) < 16:
        parser.error("the admin token has fewer than 16 characters")
    return Config(args.host, args.port, token, args.ack_wait)


def make_app(service: Callable[[], Awaitable[Service]]) -> FastAPI:
    """The ASGI application over a service that is made at its start."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.service = await service()
        await app.state.service.start()
        yield
        await app.state.service.close()

    app = FastAPI(title="Cornstalk gateway", lifespan=lifespan, redirect_slashes=False)
    app.include_router(router)
    app.include_router(deadletters.router)
    app.add_middleware(BodyLimit, limit=BODY_LIMIT)
    install(app)
    return app


async def serve(config: Config) -> None:
    async def service() -> Service:
        return Service(await Broker.from_env("gateway"), config.admin_token, config.ack_wait)

    server = uvicorn.Server(
        uvicorn.Config(
            make_app(service),
            host=config.host,
            port=config.port,
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=20,
            lifespan="on",
        )
    )
    await server.serve()


def main() -> None:
    logging.basicConfig(level=os.environ.get("CORNSTALK_LOG", "INFO"), format="%(asctime)s %(name)s %(message)s")
    config = read_config(sys.argv[1:])
    try:
        uvloop.run(serve(config))
    except BrokerError as error:
        print(f"cannot start: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise SystemExit(0) from None


if __name__ == "__main__":
    main()
