"""The client's socket: datagrams go out in order and without waiting, commits lie in a ledger beside it."""

from __future__ import annotations

import asyncio
import logging
import os
import select
import socket
from array import array
from collections import deque
from collections.abc import Callable
from typing import Final

from sidecar import messages
from sidecar.errors import Denied, SidecarDown
from sidecar.ledger import Ledger

log = logging.getLogger(__name__)

MAX_OUTGOING: Final = 65536
"""Messages that a daemon may leave unread before it counts as dead."""
_ANCILLARY: Final = socket.CMSG_SPACE(3 * 4)  # descriptors, of a Welcome


class Wire:
    """Belongs to one event loop. What was taken by the kernel reaches the daemon, whether or not this process lives."""

    def __init__(
        self,
        connection: socket.socket,
        on_message: Callable[[bytes, list[int]], None],
        on_lost: Callable[[], None],
    ) -> None:
        """`on_message` takes over the descriptors. `on_lost` is called once, unless `hang_up` was."""
        self.lost = False
        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._on_message, self._on_lost = on_message, on_lost
        self._outgoing: deque[bytes] = deque()
        self._ledger: Ledger | None = None
        self._poller = select.poll()
        self._poller.register(connection.fileno(), select.POLLIN)
        self._loop.add_reader(connection.fileno(), self._readable)

    def send(self, request: messages.Request) -> bool:
        """After all that was sent before. True if the kernel has it.

        Raises SidecarDown, and Denied for what is too long.
        """
        data = encoded(request)
        self._heed()
        return self._send(data)

    def commit(self, data: bytes) -> bool:
        """The same of an encoded Commit, for which the daemon is woken when this loop turns: who waits for the tensor
        is woken before. Raises SidecarDown.
        """
        ledger = self._ledger
        if ledger is None or not ledger.write(data):
            self._heed()
            return self._send(data)
        if ledger.unheeded == 1:
            self._loop.call_soon(self._heed_unless_lost)
        return True

    def keep_ledger(self, descriptor: int) -> None:
        """Takes over the descriptor."""
        self._ledger = Ledger(descriptor)

    def look(self) -> bool:
        """Takes a message that is there already."""
        there = bool(self._poller.poll(0))
        if there:
            self._readable()
        return there

    def hang_up(self) -> int:
        """Ends everything but the socket, whose descriptor it returns."""
        self.lost = True
        self._loop.remove_reader(self._connection.fileno())
        self._loop.remove_writer(self._connection.fileno())
        self._outgoing.clear()
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None
        return self._connection.detach()

    def lose(self) -> None:
        """The daemon is dead, or as good as that."""
        if not self.lost:
            os.close(self.hang_up())
            self._on_lost()

    def _heed(self) -> None:
        """What is sent after this comes after all that lies in the ledger."""
        if self._ledger is not None and self._ledger.unheeded:
            count, self._ledger.unheeded = self._ledger.unheeded, 0
            self._send(messages.encode(messages.Heed(count)))

    def _heed_unless_lost(self) -> None:
        try:
            self._heed()
        except SidecarDown:
            pass  # whoever uses the connection next is told

    def _send(self, data: bytes) -> bool:
        if self.lost:
            raise SidecarDown("the sidecar has died")
        sent = not self._outgoing and self._try(data)
        if not sent:
            if not self._outgoing:
                self._loop.add_writer(self._connection.fileno(), self._flush)
            self._outgoing.append(data)
            if len(self._outgoing) > MAX_OUTGOING:
                self.lose()
        if self.lost:
            raise SidecarDown("the sidecar has died")
        return sent

    def _try(self, data: bytes) -> bool:
        try:
            self._connection.send(data)
        except BlockingIOError:
            return False
        except OSError:
            self.lose()
        return True

    def _flush(self) -> None:
        while self._outgoing:
            if not self._try(self._outgoing[0]) or self.lost:
                return
            self._outgoing.popleft()
        self._loop.remove_writer(self._connection.fileno())

    def _readable(self) -> None:
        try:
            data, ancillary, flags, _ = self._connection.recvmsg(
                messages.MAX_MESSAGE, _ANCILLARY, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.lose()
            return
        if flags & socket.MSG_CTRUNC:
            log.error("out of file descriptors: the sidecar's memory cannot be taken")
        self._on_message(data, list(array("i", ancillary[0][2])) if ancillary else [])


def encoded(request: messages.Request) -> bytes:
    """One datagram. Raises Denied for what is too long."""
    data = messages.encode(request)
    if len(data) > messages.MAX_MESSAGE:
        raise Denied(f"a message of {len(data)} bytes, at most {messages.MAX_MESSAGE}")
    return data
