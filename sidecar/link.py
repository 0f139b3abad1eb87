"""The client's end of one connection: one life of the daemon. When the daemon dies a link is lost for good.

Views refer to the root of their span, never to the link: they stay valid whatever happens here.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Self

import msgspec

from sidecar import board, messages
from sidecar.arena import Mapping
from sidecar.board import Pins
from sidecar.errors import BY_CODE, SidecarDown, SidecarError, Timeout
from sidecar.mapper import Mapper
from sidecar.messages import PUSHED, Tensor
from sidecar.spares import Spares
from sidecar.views import Root, span
from sidecar.wire import Wire

log = logging.getLogger(__name__)

SPIN: Final = 100e-6
"""Seconds for which a reply is looked for before the event loop is entered: most come by then, 40 us earlier so."""


class _Tail:
    """The socket of a closed link: leases last as long as it, so it is closed with the last view."""

    def __init__(self) -> None:
        self.descriptor = -1

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


class _End:
    """Goes with a root: calls `died` with `last` when the root is collected, in whatever thread that is."""

    __slots__ = ("_died", "_last")

    def __init__(self, died: Callable[[Callable[[], object]], None], last: Callable[[], object]) -> None:
        self._died, self._last = died, last

    def __del__(self) -> None:
        self._died(self._last)


class Link:
    """Not thread-safe; views may die in any thread."""

    def __init__(self, connection: socket.socket, mapper: Mapper, on_lost: Callable[[Link], None]) -> None:
        self.host = self.epoch = ""
        self.total = 0
        self.own: dict[int, Mapping] = {}  # writable
        self.spares: Final = Spares()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._wire = Wire(connection, self._received, self._lost)
        self._mapper = mapper
        self._on_lost = on_lost
        self._ids = itertools.count(PUSHED + 1)
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._read_only: dict[int, asyncio.Task[Mapping]] = {}
        self._mapped: dict[int, Mapping] = {}  # those of them that are there
        self._pins: Pins | None = None
        self._tail = _Tail()

    @classmethod
    async def open(
        cls,
        path: str,
        mapper: Mapper,
        on_lost: Callable[[Link], None],
        *,
        name: str,
        quota: int,
        limit: int,
        wait: float,
    ) -> Self:
        """Connected and welcomed. Raises SidecarDown, Denied, Timeout."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            connection.connect(path)
        except OSError as error:
            connection.close()
            raise SidecarDown(f"no sidecar at {path}: {error.strerror}; start one with `python -m sidecar`") from None
        self = cls(connection, mapper, on_lost)
        try:
            hello = messages.Hello(self.next_id(), messages.VERSION, name, quota, limit)
            welcome = await self.ask(hello, wait)
        except BaseException:
            self.close()
            raise
        self.host, self.epoch, self.total = welcome.host, welcome.epoch, welcome.total
        return self

    @property
    def lost(self) -> bool:
        return self._wire.lost

    def now(self) -> float:
        return self._loop.time()

    def next_id(self) -> int:
        return next(self._ids)

    async def ask(self, request: Any, wait: float) -> Any:
        """The reply. Raises what a Failed stands for, Timeout, SidecarDown. What comes too late is given back."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._pending[request.id] = future
        timer = self._loop.call_later(wait, _expire, future)
        try:
            self.post(request)
            self._look_for(future)
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._give_back(future.result())
            raise
        finally:
            timer.cancel()
            self._pending.pop(request.id, None)
            if future.done() and not future.cancelled():
                future.exception()  # seen, even where `post` raised first

    def _look_for(self, future: asyncio.Future[Any]) -> None:
        until = time.monotonic() + SPIN
        while not future.done() and time.monotonic() < until:
            if not self._wire.look():
                os.sched_yield()  # the daemon may need this very core

    def post(self, request: messages.Request) -> bool:
        """One-way, in order, never blocks. True if the daemon gets it even when this process is killed now.

        Raises SidecarDown, Denied for what is too long.
        """
        return self._wire.send(request)

    def commit(self, data: bytes) -> bool:
        """`post` of an encoded Commit, but the daemon is woken for it when this loop turns. Raises SidecarDown."""
        return self._wire.commit(data)

    def pin(self, tensor: Tensor) -> Root | None:
        """A lease without a round trip: the root of its span. None: ask the daemon. Raises SidecarDown."""
        mapping = self._mapped.get(tensor.arena)
        if mapping is None or self._pins is None or not (block := board.sealed(mapping.seals, tensor)):
            return None
        if not self._pins.pin(block):
            self.post(messages.Unpinned(block))
            return None
        try:
            root = self.view(mapping, tensor.offset, tensor.nbytes)
        except BaseException:
            self._unpin(block)
            raise
        self.when_dead(root, lambda: self._unpin(block))
        return root

    def _unpin(self, block: int) -> None:
        if self._pins is not None and self._pins.unpin(block):
            self.post(messages.Unpinned(block))

    def view(self, mapping: Mapping, offset: int, nbytes: int) -> Root:
        """Root of a span; while it lives, so do the leases of this connection."""
        root = span(mapping, offset, nbytes)
        root.tail = self._tail  # type: ignore[attr-defined]
        return root

    def when_dead(self, root: Root, last: Callable[[], object]) -> None:
        """`last` runs on the loop when no view of `root` is left, unless the link is lost by then. Once for a root."""
        root.end = _End(self._root_died, last)  # type: ignore[attr-defined]

    async def readable(self, number: int, wait: float) -> Mapping:
        """The read-only mapping of an arena that a lease names; mapped once. Raises SidecarDown, Timeout, OSError."""
        task = self._read_only.get(number)
        if task is None:
            raise SidecarDown("the sidecar has died")
        if not task.done():
            await asyncio.wait((task,), timeout=wait)
            if not task.done():
                raise Timeout("the arena could not be mapped before the deadline")
        mapping = task.result()
        if number in self._read_only:
            self._mapped[number] = mapping
        return mapping

    def close(self) -> None:
        """Idempotent. Leases end at once, or with the last view where some are left."""
        if self.lost:
            return
        self._tail.descriptor = self._wire.hang_up()
        self._tail = _Tail()
        self._forget()

    def _forget(self) -> None:
        for future in self._pending.values():
            if not future.done():
                future.set_exception(SidecarDown("the sidecar has died, or the client was closed"))
        self.own.clear()
        self._read_only.clear()
        self._mapped.clear()
        self._pins = None

    def _lost(self) -> None:
        self._forget()
        self._on_lost(self)

    def _root_died(self, last: Callable[[], object]) -> None:
        here = threading.get_ident() == self._thread
        try:
            (self._loop.call_soon if here else self._loop.call_soon_threadsafe)(self._run_unless_lost, last)
        except RuntimeError:
            pass  # the loop is closed, and the connection with it

    def _run_unless_lost(self, last: Callable[[], object]) -> None:
        if not self.lost:
            try:
                last()
            except SidecarDown:
                pass  # the daemon that would have had to know is gone

    def _received(self, data: bytes, descriptors: list[int]) -> None:
        try:
            self._handle(messages.decode_reply(data), descriptors)
        except msgspec.MsgspecError as error:
            log.error("the sidecar speaks another protocol: %s", error)
            self._wire.lose()

    def _handle(self, reply: messages.Reply, descriptors: list[int]) -> None:
        if isinstance(reply, messages.Leased) and descriptors:
            self._read_only[reply.arena] = self._mapper.start(self._mapper.read_only(descriptors[0], reply.size))
        elif isinstance(reply, messages.Welcome):
            self._take_board(descriptors)
        if reply.id != PUSHED:
            future = self._pending.get(reply.id)
            if future is None or future.done():
                self._give_back(reply)
            elif isinstance(reply, messages.Failed):
                future.set_exception(BY_CODE.get(reply.code, SidecarError)(reply.message))
            else:
                future.set_result(reply)
        elif isinstance(reply, messages.Arena):
            self._mapper.start(self._adopt(reply, descriptors[0] if descriptors else -1))
        elif isinstance(reply, messages.Granted):
            self.spares.keep(reply.spaces)
        elif isinstance(reply, messages.Forget):
            self.own.pop(reply.arena, None)
            self._read_only.pop(reply.arena, None)
            self._mapped.pop(reply.arena, None)
        elif isinstance(reply, messages.Failed):
            log.error("the sidecar refused a message: %s", reply.message)

    def _give_back(self, reply: messages.Reply) -> None:
        try:
            if isinstance(reply, messages.Granted):
                for space in reply.spaces:
                    self.post(messages.Abort(space.block))
            elif isinstance(reply, messages.Leased):
                self.post(messages.EndLease(reply.lease))
            elif isinstance(reply, messages.Recalled) and reply.payload is None:
                self.post(messages.PassOn(reply.key))
        except SidecarDown:
            pass  # given back by its death

    def _take_board(self, descriptors: list[int]) -> None:
        if len(descriptors) != 3:
            for descriptor in descriptors:
                os.close(descriptor)
            return
        board_, page, ledger = descriptors
        self._wire.keep_ledger(ledger)
        try:
            self._pins = Pins(board.words_of(page, writable=True), board.words_of(board_, writable=False))
        except (OSError, ValueError) as error:
            log.error("the sidecar's board cannot be mapped, so each read asks the sidecar: %s", error)

    async def _adopt(self, offer: messages.Arena, descriptor: int) -> None:
        try:
            mapping = await self._mapper.writable(descriptor, offer.size)
            if not self.lost:
                self.own[offer.arena] = mapping
                self.post(messages.Mapped(offer.arena))
        except (OSError, SidecarError) as error:
            log.error("an arena of %d bytes cannot be taken: %s", offer.size, error)


def _expire(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(Timeout("no answer from the sidecar before the deadline"))
