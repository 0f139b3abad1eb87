"""`cornstalk run NAME`: one service in this process, for whoever supervises processes otherwise."""

from __future__ import annotations

import runpy
import signal
import sys
import time
from pathlib import Path
from typing import Final

from cornstalk.cli.errors import USAGE, CliError

MODULES: Final = {
    "sidecar": "sidecar",
    "dispatcher": "dispatcher",
    "operator": "dispatcher.operator",
    "gateway": "gateway",
    "worker": "components",
}
NAMES: Final = ("nats", *MODULES)


def run(name: str, args: list[str]) -> None:
    """Becomes the service. Its flags are those of `python -m MODULE`. Raises CliError (usage) for an unknown name."""
    if name == "nats":
        return _run_nats(args)
    if name not in MODULES:
        raise CliError(f"no service {name!r}", why=f"known are {', '.join(NAMES)}", exit_code=USAGE)
    sys.argv = [f"cornstalk run {name}", *args]
    runpy.run_module(MODULES[name], run_name="__main__", alter_sys=True)


def _run_nats(args: list[str]) -> None:
    import argparse

    from broker.errors import ServerError
    from broker.server import Server

    parser = argparse.ArgumentParser(prog="cornstalk run nats", description="The embedded nats-server, on loopback.")
    parser.add_argument("--store", type=Path, required=True, help="folder for its data and its token")
    parser.add_argument("--port", type=int, default=4222, help="-1 for a free one (default 4222)")
    flags = parser.parse_args(args)
    server = Server(flags.store, port=flags.port)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    try:
        server.start()
        print(f"CORNSTALK_NATS_URL={server.url}\nCORNSTALK_NATS_TOKEN_FILE={server.token_file}", flush=True)
        while server.poll() is None:
            time.sleep(0.2)
        raise CliError(f"nats-server ended with {server.poll()}", next=f"read {flags.store / 'nats.log'}")
    except ServerError as error:
        raise CliError("nats-server does not start", why=str(error)) from error
    finally:
        server.stop()
