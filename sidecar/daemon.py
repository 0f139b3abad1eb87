"""The sidecar of one host: gives out memory, remembers whose it is, notices who dies. It never touches tensor bytes.

Serves local clients whether or not NATS is there. One datagram of one client is handled at a time, so no lock exists.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import secrets
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import msgspec

from sidecar import board, ledger, messages
from sidecar.blocks import Book
from sidecar.board import Board
from sidecar.cache import Cache
from sidecar.errors import Denied, Gone, SidecarError, StaleEpoch
from sidecar.listener import Listener
from sidecar.memory import Memory
from sidecar.messages import PUSHED
from sidecar.peer import Peer, credentials
from sidecar.recalls import Recalls
from sidecar.transport import OneHost, Transport

log = logging.getLogger(__name__)

MAX_WILLS: Final = 4096
"""Items that one worker may hold at once."""
MAX_DRAIN: Final = 4096
"""Datagrams read at once from a producer; more than a socket can hold."""
PAUSE: Final = 0.2
"""Seconds without new clients after one could not be accepted (out of descriptors)."""
CACHE_SHARE: Final = 4
"""At most 1/CACHE_SHARE of all memory is kept for who asks again."""
SWEEP: Final = 0.5
"""Seconds between looks at expired blocks."""

Decode = Callable[[memoryview], messages.Request]


class Daemon:
    """One life of a sidecar; its random epoch stands in every Ref that it makes."""

    def __init__(self, path: Path, host: str, total: int, nak: Callable[[str], None]) -> None:
        """Listens from here on. `total`: bytes of all arenas. `nak(reply)` is called for each item of a dead worker.

        Raises StartFailed if another daemon serves the socket, or it cannot be made.
        """
        self.host, self.epoch = host, secrets.token_hex(8)
        self._nak = nak
        self._transport: Transport = OneHost()
        live, self._board_descriptor = board.make_board()
        self._board = Board(live)
        self._book = Book(host, self.epoch, self._board)
        self._peers: dict[int, Peer] = {}
        self._cache = Cache(self._book, total // CACHE_SHARE)
        self._memory = Memory(self._book, self._cache, total, self._peers)
        self._recalls = Recalls(self._cache, self._memory, self._peers)
        self._keys = itertools.count(1)
        self._missed: deque[tuple[Peer, messages.Get]] = deque()
        self._refused = 0
        self._buffer = memoryview(bytearray(messages.MAX_MESSAGE))
        self._pulls: set[asyncio.Task[None]] = set()
        self._handlers: dict[type, Callable[[Peer, Any], object]] = {
            messages.Hello: self._hello,
            messages.Mapped: self._memory.mapped,
            messages.Grant: self._memory.grant,
            messages.Withdraw: self._withdraw,
            messages.Abort: lambda peer, r: self._memory.aborted(self._book.abort(peer.key, r.block)),
            messages.Commit: self._commit,
            messages.Heed: lambda peer, r: self._read_ledger(peer, r.count),
            messages.Get: self._get,
            messages.EndLease: lambda peer, r: self._memory.freed(self._book.end_lease(peer.key, r.lease)),
            messages.Unpinned: lambda peer, r: self._memory.freed(self._book.unpinned(peer.key, r.block)),
            messages.Recall: self._recalls.recall,
            messages.Remember: self._recalls.remember,
            messages.PassOn: self._recalls.pass_on,
            messages.Will: self._will,
            messages.WillDone: lambda peer, r: peer.wills.pop(r.item, None),
            messages.Drop: lambda peer, r: self._memory.freed(self._book.drop(peer.key, r.owner)),
            messages.GetStats: lambda peer, r: peer.send(self.stats(r.id)),
        }
        self._loop = asyncio.get_running_loop()
        self._listener = Listener(path)
        self._resume: asyncio.TimerHandle | None = None
        self._listen()
        self._sweeper = self._loop.call_later(SWEEP, self._sweep)

    async def close(self) -> None:
        """Hangs up on everybody; views that clients hold stay valid until they give them up."""
        self._sweeper.cancel()
        if self._resume is not None:
            self._resume.cancel()
        self._loop.remove_reader(self._listener.socket.fileno())
        self._listener.close()
        for peer in self._peers.values():
            peer.close()
            peer.close_pidfd()
        for task in self._pulls:
            task.cancel()
        await asyncio.gather(*self._pulls, return_exceptions=True)
        self._recalls.close()
        await self._memory.close()
        os.close(self._board_descriptor)

    def release(self, releases: list[messages.Release]) -> None:
        """The dispatcher says that nobody needs these any more."""
        for entry in releases:
            self._memory.freed(self._book.release(entry.request, entry.node, entry.gen))

    def share(self) -> messages.Share:
        pool = self._memory.pool
        # spares of clients are room for their next tensors, and the cache gives way
        free = min(pool.free + self._book.granted_bytes + self._cache.idle_bytes, pool.total)
        return messages.Share(self.host, free, pool.total, pool.largest)

    def stats(self, request: int = PUSHED) -> messages.Stats:
        book, pool = self._book, self._memory.pool
        return messages.Stats(
            id=request,
            host=self.host,
            epoch=self.epoch,
            total=pool.total,
            arenas=pool.arenas,
            arena_bytes=pool.assigned,
            granted_bytes=book.granted_bytes,
            committed_bytes=book.committed_bytes,
            blocks=book.blocks,
            leases=book.leases,
            waiters=self._memory.waiters,
            wills=sum(len(peer.wills) for peer in self._peers.values()),
            connections=sum(not peer.closed for peer in self._peers.values()),
            refused=self._refused,
            expired=book.expired,
            cached=len(self._cache),
            cached_bytes=self._cache.nbytes,
        )

    def _listen(self) -> None:
        self._loop.add_reader(self._listener.socket.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.socket.accept()
        except BlockingIOError:
            return  # it has gone again
        except OSError as error:
            log.error("cannot accept a client, trying again in %s s: %s", PAUSE, error)
            self._loop.remove_reader(self._listener.socket.fileno())
            self._resume = self._loop.call_later(PAUSE, self._listen)
            return
        if credentials(connection)[1] not in (os.getuid(), 0):
            connection.close()
            return
        connection.setblocking(False)
        peer = Peer(next(self._keys), connection, self._readable)
        self._peers[peer.key] = peer
        if peer.pidfd >= 0:
            self._loop.add_reader(peer.pidfd, self._died, peer)

    def _readable(self, peer: Peer) -> None:
        self._read(peer)
        self._look_again()

    def _read(self, peer: Peer) -> bool:
        """Handles one datagram; False if there is none."""
        n = peer.read(self._buffer)
        if n > 0:
            self._handle(peer, self._buffer[:n])
        elif n == 0:
            self._hung_up(peer)
        return n > 0

    def _drain(self, peer: Peer) -> None:
        """Handles all that this client had sent until now."""
        for _ in range(MAX_DRAIN):
            if not self._read(peer):
                break
        self._read_ledger(peer, MAX_DRAIN)

    def _read_ledger(self, peer: Peer, count: int) -> None:
        """Handles so many commits that this client has laid there."""
        for _ in range(min(count, MAX_DRAIN)):
            n = ledger.read(peer.ledger, self._buffer)
            if not n:
                return
            self._handle(peer, self._buffer[:n], messages.decode_commit)

    def _handle(self, peer: Peer, data: memoryview, decode: Decode = messages.decode_request) -> None:
        number = PUSHED
        try:
            try:
                request = decode(data)
            except msgspec.MsgspecError as error:
                number = messages.number_of(data)
                raise Denied(f"malformed: {error}") from None
            number = getattr(request, "id", PUSHED)
            if not peer.name and not isinstance(request, messages.Hello):
                raise Denied("no hello yet")
            self._handlers[type(request)](peer, request)
        except SidecarError as error:
            self._fail(peer, number, error)

    def _fail(self, peer: Peer, number: int, error: SidecarError) -> None:
        if isinstance(error, Denied):
            self._refused += 1
        peer.send(messages.Failed(number, error.code, str(error)))

    def _hung_up(self, peer: Peer) -> None:
        """The connection is over, and with it its leases and grants. Its process may live on, with wills."""
        self._read_ledger(peer, MAX_DRAIN)
        peer.close()
        self._recalls.hung_up(peer)
        self._memory.hung_up(peer)
        if peer.pidfd < 0 or not peer.wills:
            self._bury(peer)

    def _died(self, peer: Peer) -> None:
        """The process is gone: what it had sent still counts, then its last wills are done."""
        self._drain(peer)
        if not peer.closed:
            self._hung_up(peer)  # a child of the process still holds the socket
        if peer.key in self._peers:
            self._bury(peer)
        self._look_again()

    def _bury(self, peer: Peer) -> None:
        peer.close_pidfd()
        del self._peers[peer.key]
        for reply in peer.wills.values():
            self._nak(reply)

    def _hello(self, peer: Peer, request: messages.Hello) -> None:
        if peer.name or not request.name:
            raise Denied("one hello with a name")
        if request.v != messages.VERSION:
            raise Denied(f"protocol version {request.v}, this sidecar speaks {messages.VERSION}: update the older one")
        if request.quota < 0 or request.limit < 0:
            raise Denied("negative quota or limit")
        total = self._memory.pool.total
        peer.name, peer.quota, peer.limit = request.name, request.quota, min(request.limit, total)
        self._welcome(peer, messages.Welcome(request.id, self.host, self.epoch, total))
        if peer.quota:
            self._memory.grow(peer, min(peer.quota, peer.limit))

    def _welcome(self, peer: Peer, welcome: messages.Welcome) -> None:
        with ExitStack() as sent:
            try:
                page, descriptor = board.make_page()
                sent.callback(os.close, descriptor)
                peer.ledger, theirs = ledger.pair()
                sent.enter_context(theirs)
            except OSError as error:
                log.error("no page for the pins of a client, which will ask for each tensor: %s", error)
                peer.send(welcome)
                return
            self._board.enter(peer.key, page)  # before it can pin
            peer.send(welcome, self._board_descriptor, descriptor, theirs.fileno())

    def _will(self, peer: Peer, request: messages.Will) -> None:
        if not request.reply or len(request.reply) > 512 or any(c in " \t\r\n*>" for c in request.reply):
            raise Denied("not a subject to reply to")
        if len(peer.wills) >= MAX_WILLS:
            raise Denied(f"more than {MAX_WILLS} last wills")
        peer.wills[request.item] = request.reply

    def _withdraw(self, peer: Peer, request: messages.Withdraw) -> None:
        self._memory.withdraw(peer, request.id)
        self._recalls.withdraw(peer, request.id)

    def _commit(self, peer: Peer, request: messages.Commit) -> None:
        freed = self._book.commit(
            peer.key, request.block, request.tensor, expires=request.expires, hold=request.hold, now=time.time()
        )
        self._memory.freed(freed)

    def _get(self, peer: Peer, request: messages.Get) -> None:
        if request.tensor.host != self.host:
            task = self._loop.create_task(self._pull(peer, request))
            self._pulls.add(task)
            task.add_done_callback(self._pulls.discard)
            return
        try:
            self._lease(peer, request.id, request.tensor)
        except StaleEpoch:
            raise
        except Gone:
            # its commit may lie unread in the socket of the producer: read that before judging
            self._missed.append((peer, request))

    def _look_again(self) -> None:
        while self._missed:
            peer, request = self._missed.popleft()
            held = self._memory.pool.get(request.tensor.arena)
            producer = self._peers.get(held.peer) if held is not None else None
            if producer is not None:
                self._drain(producer)
            try:
                self._lease(peer, request.id, request.tensor)
            except SidecarError as error:
                self._fail(peer, request.id, error)

    def _lease(self, peer: Peer, number: int, tensor: messages.Tensor) -> None:
        """Answers Leased. Raises Gone."""
        if peer.closed:
            return
        lease = self._book.lease(peer.key, tensor)
        held = self._memory.pool.get(tensor.arena)
        assert held is not None
        descriptors = () if held.id in peer.arenas else (held.descriptor,)
        peer.arenas.add(held.id)
        peer.send(messages.Leased(number, lease, held.id, held.size), *descriptors)

    async def _pull(self, peer: Peer, request: messages.Get) -> None:
        try:
            async with asyncio.timeout(request.wait):
                local = await self._transport.pull(request.tensor, request.wait)
            self._lease(peer, request.id, local)
        except TimeoutError:
            peer.send(messages.Failed(request.id, "timeout", f"host {request.tensor.host!r} did not answer in time"))
        except SidecarError as error:
            self._fail(peer, request.id, error)

    def _sweep(self) -> None:
        self._memory.freed(self._book.expire(time.time()))
        self._sweeper = self._loop.call_later(SWEEP, self._sweep)
