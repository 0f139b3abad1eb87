"""What runs in a store folder: state.json, written by `up`, read by every other command."""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import stat
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from cornstalk.cli.errors import UNREACHABLE, CliError
from cornstalk.cli.procfs import start_time

DEFAULT_STORE: Final = ".cornstalk"
SOCKET_PATH_LIMIT: Final = 107
"""Bytes that Linux gives the path of a Unix socket."""


class Running(msgspec.Struct, frozen=True):
    """One process of the tree. `pid` is 0 while it is down."""

    name: str
    pid: int
    starts: int


class State(msgspec.Struct, frozen=True):
    """A running tree. `started` is the kernel's start time of `pid`, so that a reused pid is not taken for ours."""

    pid: int
    started: int
    ready: bool
    urls: list[str]
    nats_url: str
    nats_token_file: str
    admin_token_file: str
    sidecar: str
    processes: list[Running] = []

    @property
    def url(self) -> str:
        return self.urls[0]

    @property
    def alive(self) -> bool:
        return start_time(self.pid) == self.started


def store_path(store: Path | None) -> Path:
    """Flag, CORNSTALK_STORE, ./.cornstalk."""
    return (store or Path(os.environ.get("CORNSTALK_STORE") or DEFAULT_STORE)).absolute()


def read_state(store: Path) -> State | None:
    """The last state written; its tree may be dead. None when there never was one, or it ended in order."""
    try:
        return msgspec.json.decode((store / "state.json").read_bytes(), type=State)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        path = store / "state.json"
        raise CliError(f"{path} is not readable", why=str(error), next=f"rm {path}") from error


def running_state(store: Path) -> State:
    """Raises CliError (cannot reach) when no tree is alive in the store."""
    state = read_state(store)
    if state is None or not state.alive:
        why = "it was killed" if state else "no `cornstalk up` was started with this store"
        raise CliError(f"nothing runs in {store}", why=why, next=f"cornstalk up --store {store}", exit_code=UNREACHABLE)
    return state


def write_state(store: Path, state: State) -> None:
    """Replaces the file whole: a reader sees the old or the new one."""
    _write_private(store / "state.json", msgspec.json.format(msgspec.json.encode(state), indent=1))


def open_store(store: Path) -> int:
    """Makes the folder (0700) and takes its lock, which lasts as long as this process. Raises CliError when taken."""
    store.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(store / "up.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        state = read_state(store)
        raise CliError(
            f"a tree already runs in {store}",
            why=f"process {state.pid} holds it" if state else "another `cornstalk up` is just starting there",
            next=f"cornstalk status --store {store}, cornstalk down --store {store}, or another --store",
        ) from None
    return lock


def admin_token_file(store: Path) -> Path:
    """The 0600 file with the token for deploys; made when it is not there."""
    path = store / "admin.token"
    if not path.exists():
        _write_private(path, secrets.token_urlsafe(24).encode())
    return path


def socket_path(store: Path) -> Path:
    """Where the sidecar listens: in the store, or in a private folder under /tmp where that path would be too long."""
    path = store / "sidecar.sock"
    if len(os.fsencode(path)) <= SOCKET_PATH_LIMIT:
        return path
    mark = hashlib.blake2b(os.fsencode(store), digest_size=6).hexdigest()
    folder = Path(tempfile.gettempdir()) / f"cornstalk-{os.getuid()}-{mark}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise CliError(f"{folder} is not private", why="somebody else made it", next="choose a shorter --store")
    return folder / "sidecar.sock"


def _write_private(path: Path, data: bytes) -> None:
    new = path.with_suffix(".new")
    with open(os.open(new, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
    new.replace(path)
