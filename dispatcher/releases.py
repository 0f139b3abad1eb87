"""Tells sidecars which tensors nobody needs any more. A hint, off the hot path: the blocks' own TTL is the truth."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import Final

import msgspec

from broker.connection import Broker, Subscription
from broker.errors import BrokerError
from broker.requests import Message
from broker.subjects import SIDECAR_SHARE, release_hint
from cornstalk.graph import Release, State
from cornstalk.messages import Ref, extensions
from sidecar import messages

log = logging.getLogger(__name__)

COALESCE: Final = 0.02
"""Seconds for which hints are gathered into one message per host."""
MAX_PENDING: Final = 16_384
"""Hints that wait; more are dropped."""
BATCH: Final = 1024
"""Hints in one message."""
HOST_TTL: Final = 10.0
"""Seconds without a sign of a sidecar after which its host is forgotten."""

_share = msgspec.msgpack.Decoder(messages.Share)


class Releases:
    """Collects hints and sends them. Memory only: a crash leaves blocks to the end of their request or their TTL."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._pending: dict[tuple[str, messages.Release], None] = {}
        self._hosts: dict[str, float] = {}  # host -> when its sidecar was last heard, monotonic
        self._subscription: Subscription | None = None
        self._flushing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Learns from the shares that sidecars publish which hosts there are."""
        self._subscription = await self._broker.subscribe_core(SIDECAR_SHARE, self._heard)

    def add(self, request: str, state: State, releases: Iterable[Release]) -> None:
        """Returns at once. Tensors of a whole request are released on every host."""
        for release in releases:
            if release.node:
                end = state.ends[release.node, release.gen]
                hosts = {e.host for e in extensions(end.outputs) if isinstance(e, Ref)}
                self._hint(hosts, messages.Release(request, release.node, release.gen))
            else:
                self.whole(request)

    def whole(self, request: str) -> None:
        """All tensors of a request, on every host that is known. Returns at once."""
        self._hint(self._known(), messages.Release(request))

    def _hint(self, hosts: Iterable[str], hint: messages.Release) -> None:
        for host in hosts:
            if len(self._pending) < MAX_PENDING:
                self._pending[host, hint] = None
        if self._pending and (self._flushing is None or self._flushing.done()):
            self._flushing = asyncio.create_task(self._flush_soon())

    async def close(self) -> None:
        if self._subscription is not None:
            await self._subscription.close()
        if self._flushing is not None:
            await asyncio.gather(self._flushing, return_exceptions=True)

    def _known(self) -> list[str]:
        oldest = time.monotonic() - HOST_TTL
        self._hosts = {host: at for host, at in self._hosts.items() if at > oldest}
        return list(self._hosts)

    async def _heard(self, message: Message) -> None:
        try:
            host = _share.decode(message.data).host
            release_hint(host)
        except (msgspec.MsgspecError, ValueError):
            return  # not a sidecar of this release
        self._hosts[host] = time.monotonic()

    async def _flush_soon(self) -> None:
        while self._pending:
            await asyncio.sleep(COALESCE)
            by_host: dict[str, list[messages.Release]] = {}
            for host, hint in self._pending:
                by_host.setdefault(host, []).append(hint)
            self._pending.clear()
            try:
                for host, hints in by_host.items():
                    for at in range(0, len(hints), BATCH):
                        data = messages.encode_releases(hints[at : at + BATCH])
                        await self._broker.publish_core(release_hint(host), data)
            except BrokerError as error:
                log.info("release hints dropped: %s", type(error).__name__)
