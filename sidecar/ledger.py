"""Commits in a socket at which the daemon does not wait: they are safe there, and nobody is woken for them.

On few cores the daemon, woken by a commit, took the core that the reader of the tensor was waiting for. What lies in a
ledger outlives the producer. The daemon reads as much as the producer says with Heed, in the order of its other
messages, when its loop turns; all of it when the producer hangs up or dies, and before a Get is refused.
"""

from __future__ import annotations

import socket


def pair() -> tuple[socket.socket, socket.socket]:
    """The daemon's end and the producer's. Raises OSError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    return ours, theirs


def read(ledger: socket.socket | None, buffer: memoryview) -> int:
    """Bytes of the next commit; 0 if there is none now."""
    if ledger is None:
        return 0
    try:
        return ledger.recv_into(buffer)
    except OSError:
        return 0


class Ledger:
    """The producer's end."""

    def __init__(self, descriptor: int) -> None:
        """Takes over `descriptor`."""
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(False)
        self.unheeded = 0
        """Commits of which the daemon has not been told."""

    def write(self, data: bytes) -> bool:
        """False: it is full, or the daemon has died."""
        try:
            self._socket.send(data)
        except OSError:
            return False
        self.unheeded += 1
        return True

    def close(self) -> None:
        self._socket.close()
