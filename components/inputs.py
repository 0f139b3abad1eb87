"""Inputs of an item: references in the WorkItem become views, bytes and streams, and are given back together."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Any, Final

from broker.connection import Broker
from broker.errors import UploadGone
from broker.facts import Facts
from broker.uploads import Spool
from components.engine import Cancelled
from components.stalls import Stalls
from components.streams import ProducerLost, StreamOf, StreamOfTensors, WholeStream
from components.tensors import array_of
from cornstalk.errors import EngineError
from cornstalk.large import is_mark, value_of
from cornstalk.messages import Extension, Inline, Ref, StreamRef, Upload, WorkItem
from cornstalk.task import UnitTask
from sidecar.client import SidecarClient
from sidecar.errors import Gone, NodeLost

READ_WAIT: Final = 5.0
"""Seconds to wait for one tensor or upload before the item is handed back."""


class InputsLost(Exception):
    """Raised when inputs can no longer be read: the item ends `lost` and names what vanished."""

    def __init__(self, vanished: tuple[tuple[str, int], ...]) -> None:
        super().__init__(f"vanished: {', '.join(f'{node} generation {gen}' for node, gen in vanished)}")
        self.vanished = vanished


class Inputs:
    """Leases of one item. All are given back on exit, and end with this process: a crash leaks none."""

    def __init__(
        self, broker: Broker, facts: Facts, sidecar: SidecarClient, stalls: Stalls, task: UnitTask, item: WorkItem
    ) -> None:
        self._broker, self._facts, self._sidecar, self._stalls = broker, facts, sidecar, stalls
        self._task, self._item = task, item
        self._stack = AsyncExitStack()
        self._vanished: list[tuple[str, int]] = []
        self._streams: list[StreamOf] = []

    async def __aenter__(self) -> dict[str, Any]:
        """The input values. Raises InputsLost, naming everything that is gone, not just the first; Cancelled at the
        item's deadline.
        """
        self._stack.enter_context(self._stalls.watch(self, self._item.lane))
        try:
            async with asyncio.timeout(max(0.0, self._item.deadline - time.time())):
                given = {**self._task.defaults, **self._item.inputs}
                values = {name: await self._input(name, value) for name, value in given.items()}
            if self._vanished:
                raise InputsLost(tuple(dict.fromkeys(self._vanished)))
        except TimeoutError:
            await self._stack.aclose()
            raise Cancelled("expired") from None
        except BaseException:
            await self._stack.aclose()
            raise
        return values

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _input(self, name: str, value: Any) -> Any:
        port = type(self._task).inputs.get(name)
        if port is None or port.kind != "stream":
            return await self._resolve(value)
        if isinstance(value, StreamRef):
            stream = await self._stream(value)
            return StreamOfTensors(stream, self._streamed) if port.tensors else stream
        return WholeStream(await self._resolve(value))

    async def _resolve(self, value: Any) -> Any:
        if isinstance(value, Extension):
            return await self._fetch(value)
        if isinstance(value, dict):
            return {key: await self._resolve(v) for key, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [await self._resolve(v) for v in value]
        return value

    async def _fetch(self, value: Extension) -> Any:
        match value:
            case Ref():
                return await self._tensor(value)
            case StreamRef():
                return await (await self._stream(value)).whole()
            case Upload():
                return await self._upload(value)
        raise EngineError(f"an input holds a {type(value).__name__}, which no worker can read", code="bad_item")

    async def _tensor(self, ref: Ref) -> Any:
        try:
            lease = await self._sidecar.get(ref, wait=READ_WAIT)
        except (Gone, NodeLost):
            self._vanished.append((ref.node, ref.gen))
            return None
        self._stack.callback(lease.release)
        return lease.array

    async def _streamed(self, tensor: Extension) -> Any:
        """A tensor of a stream. Raises ProducerLost if it is gone: this item and the producer run again."""
        if isinstance(tensor, Inline):
            return array_of(tensor)
        assert isinstance(tensor, Ref)
        try:
            lease = await self._sidecar.get(tensor, wait=READ_WAIT)
        except (Gone, NodeLost):
            raise ProducerLost(tensor.node, tensor.gen) from None
        self._stack.callback(lease.release)
        return lease.array

    async def _upload(self, upload: Upload) -> str | bytes:
        try:
            data = await Spool(self._broker).get(upload, timeout=READ_WAIT)
        except UploadGone as error:
            raise EngineError(str(error), code="upload_gone") from error
        return value_of(upload, data) if is_mark(upload) else data

    async def _stream(self, ref: StreamRef) -> StreamOf:
        stream = await self._stack.enter_async_context(StreamOf(self._broker, self._facts, ref))
        self._streams.append(stream)
        return stream

    def longest_waited(self) -> StreamOf | None:
        """The stream whose next piece is waited for the longest; None if there are no streams."""
        return max(self._streams, key=lambda stream: stream.waited, default=None)
