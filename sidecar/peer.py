"""The daemon's end of one connection: who is there, what it was sent, and when its process dies."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

from sidecar.messages import MAX_MESSAGE, Replies, encode

SO_PEERPIDFD: Final = 77


class Peer:
    """Never blocks: what the client does not take is queued, and nothing more is read from it until it does."""

    def __init__(self, key: int, connection: socket.socket, on_readable: Callable[[Peer], None]) -> None:
        self.key = key
        self.name = ""  # empty until Hello
        self.quota = self.limit = 0
        self.closed = False
        self.growing = False  # an arena is being made for it
        self.wills: dict[str, str] = {}  # item -> reply subject
        self.arenas: set[int] = set()  # whose descriptor it has been sent
        self.again: OrderedDict[int, None] = OrderedDict()  # sizes of blocks that it wants back when they come free
        self.ledger: socket.socket | None = None  # the end that is read
        self.pidfd = _pidfd(connection)
        self._connection = connection
        self._on_readable = on_readable
        self._loop = asyncio.get_running_loop()
        self._outgoing: deque[tuple[bytes, tuple[int, ...]]] = deque()  # datagram, descriptors
        self._loop.add_reader(connection.fileno(), on_readable, self)

    def read(self, buffer: memoryview) -> int:
        """Bytes of the next datagram; 0 at the end of the connection, -1 if there is none now."""
        if self.closed:
            return -1
        try:
            return self._connection.recv_into(buffer, MAX_MESSAGE)
        except BlockingIOError:
            return -1
        except OSError:
            return 0

    def send(self, message: Replies, *descriptors: int) -> None:
        """Sends or queues; a client that is gone is noticed by `read`."""
        if self.closed:
            return
        data = encode(message)
        if self._outgoing or not self._try(data, descriptors):
            if not self._outgoing:
                self._loop.remove_reader(self._connection.fileno())
                self._loop.add_writer(self._connection.fileno(), self._flush)
            # the arena may be gone, and its number in use again, before the client reads
            self._outgoing.append((data, tuple(os.dup(descriptor) for descriptor in descriptors)))

    def remember(self, size: int, most: int) -> None:
        """The client wants blocks of this size back; so it does of the `most` sizes that it said so of last."""
        self.again[size] = None
        self.again.move_to_end(size)
        if len(self.again) > most:
            self.again.popitem(last=False)

    def close(self) -> None:
        """Idempotent. The pidfd stays open: see `close_pidfd`."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._connection.fileno())
        self._loop.remove_writer(self._connection.fileno())
        self._connection.close()
        if self.ledger is not None:
            self.ledger.close()
        for _, descriptors in self._outgoing:
            _close(descriptors)
        self._outgoing.clear()

    def close_pidfd(self) -> None:
        if self.pidfd >= 0:
            self._loop.remove_reader(self.pidfd)
            os.close(self.pidfd)
            self.pidfd = -1

    def _try(self, data: bytes, descriptors: tuple[int, ...]) -> bool:
        try:
            if descriptors:
                socket.send_fds(self._connection, [data], list(descriptors))
            else:
                self._connection.send(data)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def _flush(self) -> None:
        while self._outgoing:
            data, descriptors = self._outgoing[0]
            if not self._try(data, descriptors):
                return
            self._outgoing.popleft()
            _close(descriptors)
        self._loop.remove_writer(self._connection.fileno())
        self._loop.add_reader(self._connection.fileno(), self._on_readable, self)


def _close(descriptors: tuple[int, ...]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def credentials(connection: socket.socket) -> tuple[int, int]:
    """(pid, uid) of the process at the other end. The pid is 0 if it lies in a foreign pid namespace."""
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


def _pidfd(connection: socket.socket) -> int:
    """Descriptor that becomes readable when the process ends; -1 where the end of the connection must do.

    SO_PEERPIDFD (Linux 6.5) works across pid namespaces and cannot meet a reused pid; pidfd_open is for older kernels.
    """
    try:
        return connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError:
        pass
    try:
        return os.pidfd_open(credentials(connection)[0])
    except (OSError, ValueError):
        return -1
