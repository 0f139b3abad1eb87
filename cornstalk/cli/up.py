"""`cornstalk up` and `cornstalk down`."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cornstalk.cli.console import note, stderr, working
from cornstalk.cli.deploy import deploy_file
from cornstalk.cli.errors import FAILED, TIMED_OUT, USAGE, CliError
from cornstalk.cli.gateway import Gateway
from cornstalk.cli.paths import child_argv, child_env
from cornstalk.cli.process import rotate
from cornstalk.cli.state import State, open_store, read_state, store_path
from cornstalk.cli.supervisor import READY_WITHIN, Supervisor
from cornstalk.cli.tree import Config, Tree

DETACH_WITHIN: Final = READY_WITHIN + 15.0
DOWN_WITHIN: Final = 60.0


def up(config: Config) -> None:
    """Runs a tree in this process until it is told to stop. Raises CliError."""
    _check_apps(config)
    lock = open_store(config.store)
    try:
        _start_logs(config.logs)
        asyncio.run(Supervisor(tree := Tree(config)).run(lambda: _announce(tree)))
    finally:
        os.close(lock)


async def _announce(tree: Tree) -> None:
    async with Gateway(tree.urls, admin_token_file=tree.admin_token_file) as gateway:
        for path in tree.config.apps:
            deployed = await deploy_file(gateway, path)
            note(f"deployed {deployed['name']}")
    for url in tree.urls:
        print(url, flush=True)
    note(f"ready: cornstalk status --store {tree.config.store}; Ctrl-C stops it")


def up_detached(config: Config) -> None:
    """Starts `cornstalk up` in a session of its own and returns once it is ready. Raises CliError."""
    command = [sys.executable, "-P", "-m", "cornstalk.cli", *_arguments(config)]
    process, output = _launch(config, command)
    with working("starting"):
        state = _await_ready(config.store, process, output)
    print("\n".join(state.urls))
    note(f"ready: cornstalk status, cornstalk down; logs in {config.logs}")


@contextmanager
def own_tree(config: Config) -> Iterator[State]:
    """A tree for the length of a block. It dies with this process. Raises CliError."""
    process, output = _launch(config, child_argv("cornstalk.cli", *_arguments(config)))
    try:
        with working("starting the tree"):
            state = _await_ready(config.store, process, output)
        yield state
    finally:
        process.terminate()
        with working("stopping the tree"):
            try:
                process.wait(DOWN_WITHIN)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _launch(config: Config, command: list[str]) -> tuple[subprocess.Popen[bytes], Path]:
    _check_apps(config)
    os.close(open_store(config.store))
    config.logs.mkdir(mode=0o700, exist_ok=True)
    output = config.logs / "up.out"
    with open(output, "wb") as file:
        process = subprocess.Popen(
            command,
            env=child_env(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    return process, output


def _arguments(config: Config) -> list[str]:
    flags = {
        "store": config.store,
        "port": config.port,
        "gateways": config.gateways,
        "dispatchers": config.dispatchers,
        "workers": config.workers,
        "host": config.host,
        "sidecar-bytes": config.sidecar_bytes,
    }
    given = [part for name, value in flags.items() if value is not None for part in (f"--{name}", str(value))]
    autoscale = ["--autoscale"] if config.autoscale else []
    return ["up", *given, *autoscale, *map(str, config.apps)]


def _await_ready(store: Path, process: subprocess.Popen[bytes], output: Path) -> State:
    """The state of a tree that `process` starts, once it is ready. Raises CliError with what it printed."""
    end = time.monotonic() + DETACH_WITHIN
    while time.monotonic() < end:
        if process.poll() is not None:
            said = output.read_text(errors="replace").strip()[-2000:]
            raise CliError("the tree did not start", why=said, exit_code=max(process.returncode, FAILED))
        state = read_state(store)
        if state and state.pid == process.pid and state.ready:
            return state
        time.sleep(0.05)
    process.terminate()
    raise CliError(f"not ready within {DETACH_WITHIN:.0f} s", next=f"read {output}", exit_code=TIMED_OUT)


def down(store: Path | None) -> None:
    """Stops the tree of a store, in order; what is durable stays. No tree there: nothing to do. Raises CliError."""
    path = store_path(store)
    state = read_state(path)
    if state is None or not state.alive:
        stderr().print(f"nothing runs in {path}", markup=False)
        return
    watched = os.pidfd_open(state.pid)
    try:
        if state.alive:  # still the same process, now that the descriptor holds it
            signal.pidfd_send_signal(watched, signal.SIGTERM)
        with working("stopping"):
            _await_end(state, path)
    finally:
        os.close(watched)
    print(f"stopped {path}")


def _await_end(state: State, store: Path) -> None:
    end = time.monotonic() + DOWN_WITHIN
    while state.alive:
        if time.monotonic() > end:
            raise CliError(
                f"process {state.pid} does not end",
                why=f"it was told {DOWN_WITHIN:.0f} s ago",
                next=f"kill -9 {state.pid}  (its children die with it; the store {store} stays whole)",
                exit_code=TIMED_OUT,
            )
        time.sleep(0.05)


def _check_apps(config: Config) -> None:
    for path in config.apps:
        if not path.is_file():
            raise CliError(f"no such app file: {path}", exit_code=USAGE)


def _start_logs(logs: Path) -> None:
    """The supervisor's own log, in the folder and, when somebody looks, on standard error."""
    logs.mkdir(mode=0o700, exist_ok=True)
    for old in logs.glob("*.log"):
        rotate(old)
    rotate(logs / "up.log")
    handlers: list[logging.Handler] = [logging.FileHandler(logs / "up.log")]
    if sys.stderr.isatty():
        handlers.append(logging.StreamHandler())
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", handlers=handlers)
    logging.getLogger("cornstalk").setLevel(logging.INFO)
