"""The socket file: private to its user, one daemon at a time, and what a killed daemon left is no obstacle."""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path
from typing import Final

from sidecar.errors import StartFailed

BACKLOG: Final = 128
LONGEST: Final = 107
"""Bytes of a Unix socket path."""


class Listener:
    """A listening SOCK_SEQPACKET socket of mode 0600, in a directory that is made with mode 0700."""

    def __init__(self, path: Path) -> None:
        """Raises StartFailed if another daemon serves the path, or it cannot be made."""
        if len(os.fsencode(path)) > LONGEST:
            raise StartFailed(f"the socket path has more than {LONGEST} bytes: {path}; choose a shorter one")
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        self._lock = -1
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # the lock ends with the process, however it ends
            self._lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
            self._bind()
        except BlockingIOError:
            self._close()
            raise StartFailed(f"another sidecar serves {path}") from None
        except OSError as error:
            self._close()
            raise StartFailed(f"cannot make the socket {path}: {error.strerror}") from None

    def close(self) -> None:
        self.path.unlink(missing_ok=True)
        self._close()

    def _bind(self) -> None:
        before = os.umask(0o177)
        try:
            self.socket.bind(str(self.path))
        finally:
            os.umask(before)
        self.socket.listen(BACKLOG)

    def _close(self) -> None:
        self.socket.close()
        if self._lock >= 0:
            os.close(self._lock)
