"""A process's way to the sidecar of its host: put tensors, get them, leave last wills.

Copies nothing but what `put_copy` says. A put of a size that comes again sends one message and waits for none. A get
sends none, but for the first from an arena, which is a round trip. Reconnects by itself; while no daemon is there every
operation raises SidecarDown at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple, Self

from cornstalk.messages import Ref
from sidecar import messages
from sidecar.allocator import rounded
from sidecar.copying import LARGE, copy, copy_large
from sidecar.dtypes import name_of, nbytes_of
from sidecar.errors import Full, SidecarDown, SidecarError, Timeout, TooBig
from sidecar.link import Link
from sidecar.mapper import Mapper
from sidecar.messages import Owner, Tensor
from sidecar.spares import Wish
from sidecar.tensors import Block, Lease, shape_of

log = logging.getLogger(__name__)

DEFAULT_QUOTA: Final = 64 << 20
GRACE: Final = 1.0
"""Seconds after its own deadline at which the daemon counts as hung."""
FIRST_RETRY, LAST_RETRY = 0.02, 0.3
"""Seconds between attempts to reconnect."""


REFUSED_RETRY: Final = 2.0
"""Seconds after which a sidecar that refused this client is asked again: it may be of another release for a while."""


class Remembered(NamedTuple):
    """What somebody said of a key, and its tensors."""

    payload: bytes
    refs: list[Ref]


class SidecarClient:
    """Belongs to one event loop. Leases and blocks of an earlier life of the daemon stay readable and writable."""

    def __init__(self, path: str | os.PathLike[str], name: str, quota: int, limit: int) -> None:
        self._path, self._name, self._quota, self._limit = os.fspath(path), name, quota, limit
        self._mapper = Mapper()
        self._link: Link | None = None
        self._wills: dict[str, str] = {}
        self._closed = False
        self._up = asyncio.Event()
        self._reconnecting: asyncio.Task[None] | None = None

    @classmethod
    async def connect(
        cls,
        path: str | os.PathLike[str],
        *,
        name: str,
        quota: int = DEFAULT_QUOTA,
        limit: int = 1 << 62,
        wait: float = 10.0,
    ) -> Self:
        """Connected. `quota` bytes of arena are made beside it (0: a pure reader); puts may grow it up to `limit`.

        Raises SidecarDown if no daemon came up in `wait` seconds, Denied, Timeout.
        """
        self = cls(path, name, quota, limit)
        try:
            async with asyncio.timeout(wait):
                await self._connect()
        except TimeoutError:
            await self.close()
            raise SidecarDown(f"no sidecar at {self._path}; start one with `python -m sidecar`") from None
        except BaseException:
            await self.close()
            raise
        return self

    @property
    def connected(self) -> bool:
        return self._link is not None

    async def wait_connected(self, wait: float) -> bool:
        """Whether a daemon is there, now or within `wait` seconds."""
        try:
            async with asyncio.timeout(wait):
                return await self._up.wait()
        except TimeoutError:
            return False

    @property
    def epoch(self) -> str:
        """Life of the daemon. Raises SidecarDown."""
        return self.live().epoch

    @asynccontextmanager
    async def put(
        self,
        owner: Owner,
        output: str,
        index: int,
        shape: Sequence[int] | int,
        dtype: Any,
        *,
        expires: float,
        wait: float,
    ) -> AsyncIterator[Block]:
        """A block to write into; leaving commits it, an exception gives it back. `expires` in Unix seconds.

        Waits up to `wait` seconds for room, in order of arrival. Raises Full, TooBig, Denied, SidecarDown, Timeout.
        """
        block = await self._block(owner, output, index, shape, dtype, expires, wait)
        try:
            yield block
        except BaseException:
            block.abort()
            raise
        block.commit()

    async def put_copy(self, owner: Owner, output: str, index: int, tensor: Any, *, expires: float, wait: float) -> Ref:
        """Copies a numpy array or torch tensor (any device) and commits it. Raises like `put`."""
        block = await self._block(owner, output, index, tensor.shape, tensor.dtype, expires, wait)
        try:
            if tensor.nbytes < LARGE:
                copy(block, tensor)
            else:
                await copy_large(block, tensor, self._mapper)
        except BaseException:
            block.abort()
            raise
        return block.commit()

    async def get(self, ref: Ref, wait: float = 2.0) -> Lease:
        """A lease of exactly the tensor that `ref` names, whole.

        Raises Gone, StaleEpoch, NodeLost, Denied, SidecarDown, Timeout after `wait` seconds.
        """
        link, tensor = self.live(), Tensor.of(ref)
        pinned = link.pin(tensor)
        if pinned is not None:
            return Lease(ref, pinned)
        begun = link.now()
        leased = await link.ask(messages.Get(link.next_id(), tensor, wait), wait)
        end = messages.EndLease(leased.lease)
        try:
            mapping = await link.readable(leased.arena, begun + wait - link.now())
            root = link.view(mapping, ref.offset, ref.nbytes)
        except BaseException as error:
            if not link.lost:
                link.post(end)
            if isinstance(error, OSError):
                raise SidecarError(f"an arena cannot be mapped: {error.strerror}") from error
            raise
        link.when_dead(root, lambda: link.post(end))
        return Lease(ref, root)

    async def recall(self, key: str, owner: Owner, *, expires: float, wait: float) -> Remembered | None:
        """What was made of the same inputs before, by whatever client of this host; its tensors are now `owner`'s too.

        Waits for another client that makes it. None: it is the turn of this one, which owes `remember` or `pass_on`.
        Raises Timeout after `wait` seconds, SidecarDown, Denied.
        """
        link = self.live()
        request = messages.Recall(link.next_id(), key, owner, expires, wait)
        try:
            recalled: messages.Recalled = await link.ask(request, wait + GRACE)
        except (Timeout, asyncio.CancelledError):
            if not link.lost:
                link.post(messages.Withdraw(request.id))
                link.post(messages.Drop(owner))  # if it was answered all the same
            raise
        if recalled.payload is None:
            return None
        return Remembered(recalled.payload, [tensor.ref() for tensor in recalled.tensors])

    async def remember(self, key: str, payload: bytes, refs: Sequence[Ref]) -> None:
        """`refs`, committed by this client, are what `key` stands for; `payload` says the rest.

        What is too long for one datagram is not kept.
        Never fails: what a sidecar that is away does not hear is made again.
        """
        message = messages.Remember(key, payload, tuple(Tensor.of(ref) for ref in refs))
        fits = len(messages.encode(message)) <= messages.MAX_MESSAGE
        self._tell(message if fits else messages.PassOn(key))

    async def pass_on(self, key: str) -> None:
        """This client does not make what `recall` left to it."""
        self._tell(messages.PassOn(key))

    async def will(self, item: str, reply: str) -> None:
        """If this process dies, its sidecar hands the item behind `reply` back at once.

        Never fails: a sidecar that is away hears of it when it is back.
        """
        self._wills[item] = reply
        self._tell(messages.Will(item, reply))

    async def will_done(self, item: str) -> None:
        """The item was acknowledged or handed back."""
        if self._wills.pop(item, None) is not None:
            self._tell(messages.WillDone(item))

    async def drop(self, owner: Owner) -> None:
        """Frees all that was committed here for an attempt that lost. Nothing is left of it if the sidecar died."""
        self._tell(messages.Drop(owner))

    async def stats(self, wait: float = 2.0) -> messages.Stats:
        """Raises SidecarDown, Timeout."""
        link = self.live()
        stats: messages.Stats = await link.ask(messages.GetStats(link.next_id()), wait)
        return stats

    async def close(self) -> None:
        """Idempotent. Leases whose views are still held end with them."""
        self._closed = True
        self._up.clear()
        if self._reconnecting is not None:
            self._reconnecting.cancel()
            await asyncio.gather(self._reconnecting, return_exceptions=True)
        link, self._link = self._link, None
        if link is not None:
            link.close()
        await self._mapper.close()

    async def _block(
        self, owner: Owner, output: str, index: int, shape: Sequence[int] | int, dtype: Any, expires: float, wait: float
    ) -> Block:
        """A granted block, which the caller commits or aborts."""
        link, name, sizes = self.live(), name_of(dtype), shape_of(shape)
        nbytes = nbytes_of(name, sizes)
        space = await self.grant(link, nbytes, wait)
        try:
            return Block(link, space, owner, output, index, name, sizes, nbytes, expires)
        except BaseException:
            if not link.lost:
                link.post(messages.Abort(space.block))
            raise

    async def grant(self, link: Link, nbytes: int, wait: float) -> messages.Space:
        """A block, granted ahead or by waiting in line. Raises Full, TooBig, Denied, SidecarDown, Timeout."""
        spare = link.spares.take(rounded(nbytes))
        if spare is not None:
            return spare
        wish = link.spares.wish(rounded(nbytes), sum(mapping.size for mapping in link.own.values()))
        if link.spares:
            try:
                return await self._ask(link, nbytes, 0.0, wish)
            except TooBig:
                raise
            except Full:
                for spare in link.spares.give_back():
                    link.post(messages.Abort(spare.block))
        return await self._ask(link, nbytes, wait, wish)

    async def _ask(self, link: Link, nbytes: int, wait: float, wish: Wish) -> messages.Space:
        request = messages.Grant(link.next_id(), nbytes, wait, wish.blocks, wish.again)
        try:
            granted: messages.Granted = await link.ask(request, wait + GRACE)
        except (Timeout, asyncio.CancelledError):
            if not link.lost:
                link.post(messages.Withdraw(request.id))
            raise
        first, *more = granted.spaces
        link.spares.keep(more)
        return first

    def live(self) -> Link:
        """The connection of now. Raises SidecarDown."""
        if self._link is None:
            raise SidecarDown(f"no sidecar at {self._path} now" if not self._closed else "this client was closed")
        return self._link

    def _tell(self, message: messages.Request) -> None:
        if self._link is not None:
            try:
                self._link.post(message)
            except SidecarDown:
                pass  # told again, or void, when the next daemon is there

    async def _connect(self) -> None:
        delay = FIRST_RETRY
        while True:
            try:
                link = await Link.open(
                    self._path, self._mapper, self._lost, name=self._name, quota=self._quota, limit=self._limit,
                    wait=GRACE,
                )  # fmt: skip
                break
            except (SidecarDown, Timeout) as error:
                log.debug("no sidecar yet: %s", error)
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))
            delay = min(delay * 2, LAST_RETRY)
        self._link = link
        self._up.set()
        for item, reply in self._wills.items():
            self._tell(messages.Will(item, reply))

    def _lost(self, link: Link) -> None:
        if link is self._link:
            self._link = None
            self._up.clear()
            if not self._closed:
                log.warning("the sidecar died; connecting again")
                self._reconnecting = asyncio.get_running_loop().create_task(self._reconnect())

    async def _reconnect(self) -> None:
        while True:
            try:
                return await self._connect()
            except SidecarError as error:
                log.error("the new sidecar refuses this client, trying again in %s s: %s", REFUSED_RETRY, error)
            await asyncio.sleep(REFUSED_RETRY)
