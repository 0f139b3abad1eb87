"""One run of an app's `async def serve` over the log of its request (cornstalk/session.py)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from broker.chunks import ChunkReader
from broker.connection import Broker
from broker.subjects import chunk
from cornstalk.app import App
from cornstalk.messages import End
from cornstalk.session import Serving
from cornstalk.task import CompositeTask
from gateway.journal import Journal
from gateway.part import Ended, Part


class Served(Serving):
    """Its calls are recorded in the request's journal; workers compute, and streams are read from CHUNKS."""

    def __init__(self, broker: Broker, journal: Journal, app: App) -> None:
        super().__init__(app)
        self._broker, self._journal = broker, journal

    def part(self, task: CompositeTask, request: Any, path: str) -> Part:
        return Part(self._journal, task, request, self._app.name, path)

    def call_id(self, node: str) -> str:
        return self._journal.state.nodes[node].id

    async def pieces(self, node: str, output: str) -> AsyncIterator[Any]:
        told = 0  # characters, bytes or members
        whole = False
        while not whole:
            gen, at = self._journal.state.gen(node), 0
            async with ChunkReader(self._broker, chunk(self._journal.accepted.request, node, gen, output)) as reader:
                ending = asyncio.create_task(self._ending(node, gen, output, reader))
                try:
                    async for stored in reader:
                        if not stored.chunk.takeover:
                            piece = stored.chunk.payload
                            new, at = piece[max(0, told - at) :], at + len(piece)
                            told = max(told, at)
                            if new:
                                yield new
                    whole = await ending
                finally:
                    ending.cancel()

    async def whole(self, node: str, output: str) -> Any:
        end = await self.until(node, self._known(node))
        return await self._journal.values.stream(end, output, self._journal.port(node, output).empty)

    async def _ending(self, node: str, gen: int, output: str, reader: ChunkReader) -> bool:
        """Ends the reader of one generation. False if that was lost: the next one says the same again and goes on.

        Raises why the node failed, and Ended.
        """
        try:
            end = await self.until(node, self._end(node, gen))
            if end is not None:
                await reader.set_total(int(end.outputs[output]))
            return end is not None
        finally:
            reader.finish()

    async def _end(self, node: str, gen: int) -> End | None:
        """The End of a generation that ends well, None if it is lost. Raises as `_ending`."""
        state = self._journal.state
        while (end := state.ends.get((node, gen))) is None or end.outcome != "done":
            if state.gen(node) > gen:
                return None
            await self._unless_over(node, end)
        return end

    async def _known(self, node: str) -> End:
        """The End of a node that ends well. Raises as `_ending`."""
        while (end := self._journal.known().get(node)) is None or end.outcome != "done":
            await self._unless_over(node, end)
        return end

    async def _unless_over(self, node: str, end: End | None) -> None:
        """Waits for more facts."""
        if end is not None:
            await self.failed(node)
        if end is not None or self._journal.state.finish is not None:
            raise Ended
        await self._journal.changed()
