"""Outputs of one attempt: stream pieces appended, tensors committed, and what End says of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from broker.chunks import ChunkWriter, Coalescer
from broker.connection import Broker
from broker.crash import crash_at
from broker.facts import Facts
from broker.lifetimes import BLOCK_GRACE, fact_ttl
from broker.subjects import chunk as chunk_subject
from broker.subjects import end as end_subject
from broker.subjects import finish
from broker.subjects import first as first_subject
from broker.uploads import Spool
from components.engine import Block, Piece
from components.tensors import INLINE, inline
from cornstalk.errors import EngineError, LineageDiverged
from cornstalk.large import without_large
from cornstalk.messages import Chunk, End, First, Inline, Ref, Upload, WorkItem, decode, encode
from cornstalk.task import UnitTask
from cornstalk.values import check_outputs, check_piece
from sidecar.client import SidecarClient
from sidecar.messages import Owner

SPACE_WAIT: Final = 10.0
"""Seconds to wait for arena space before the item is handed back with delay."""


class Outputs:
    """What an attempt has put out so far. Chunks and committed tensors survive the attempt; nothing else does.

    `prior` and `prior_tokens` hold what earlier attempts stored of each stream. `settled` is what the node answered
    before its tensors were lost: its stored values stay its values (design rule 7), so whatever is made again must
    agree, or the attempt ends LineageDiverged. A tensor of a dead attempt is leased to nobody and goes when the request
    is released.

    Tensors of a stream belong to the stream, not to the attempt: once they stand in the log, whoever goes on with it
    needs them. A generation after a lost one makes them all again, forced to the stored tokens.
    """

    def __init__(
        self, broker: Broker, facts: Facts, sidecar: SidecarClient, task: UnitTask, item: WorkItem, attempt: str
    ) -> None:
        self._broker, self._facts, self._sidecar = broker, facts, sidecar
        self._item, self._attempt = item, attempt
        self.owner = Owner(item.request, item.node, item.gen, attempt)
        self._log_owner = Owner(item.request, item.node, item.gen, f"{attempt}.log")
        self._kinds = item.outputs
        self._task = task
        self._writers: dict[str, ChunkWriter] = {}
        self._streams: dict[str, Coalescer] = {}
        self._firsts: dict[str, asyncio.Task[None]] = {}
        self._refs: dict[str, Ref] = {}
        self._streamed: list[Ref] = []
        self.prior: dict[str, list[Piece]] = {}
        self.prior_tokens: dict[str, list[int]] = {}
        self.settled: dict[str, Any] | None = None
        self.first_at = 0.0
        self._committed = False

    async def open(self, first: bool) -> None:
        """Opens a writer for each stream output; takes over from an earlier attempt or generation if there was one.

        `first` says that no attempt of this generation was before: then nothing is read.
        """
        item = self._item
        self.settled = await self._of_first_done()
        for output in (o for o, kind in self._kinds.items() if kind == "stream"):
            older = await self._of_older_generations(output)
            subject = chunk_subject(item.request, item.node, item.gen, output)
            writer = self._writers[output] = await ChunkWriter.open(
                self._broker,
                subject,
                self._attempt,
                ttl=fact_ttl(item.deadline),
                deadline=item.deadline,
                fresh=first,
            )
            tensors = self._task.outputs[output].tensors
            prior = max(older, writer.prior, key=len)
            self.prior[output] = [chunk.payload for chunk in (writer.prior if tensors else prior)]
            self.prior_tokens[output] = max(_tokens(older), _tokens(writer.prior), key=len)
            for chunk in () if tensors else older[writer.n :]:
                await writer.append(chunk.payload, chunk.tokens)
                crash_at("worker.inherited")
            self._streams[output] = Coalescer(_Marking(writer, self, output))
            if writer.n:
                self.begun(output)

    async def _of_first_done(self) -> dict[str, Any] | None:
        """The outputs of the lowest generation that was done, as its End stored them."""
        for gen in range(self._item.gen):
            stored = await self._facts.last(end_subject(self._item.request, self._item.node, gen))
            if stored is not None and (end := decode(End, stored.data)).outcome == "done":
                return end.outputs
        return None

    async def _of_older_generations(self, output: str) -> list[Chunk]:
        """What was stored of a stream before its node was lost. Clients have it: this generation goes on after it."""
        item, longest = self._item, list[Chunk]()
        for gen in range(item.gen):
            subject = chunk_subject(item.request, item.node, gen, output)
            stored = await ChunkWriter.seal(
                self._broker, subject, self._attempt, ttl=fact_ttl(item.deadline), deadline=item.deadline
            )
            longest = max(longest, stored, key=len)
        return longest

    async def emit(self, output: str, piece: Piece, tokens: Sequence[int]) -> None:
        stream = self._streams.get(output)
        if stream is None:
            raise EngineError(
                f"{output!r} is no stream output; streams are {', '.join(self._streams)}", code="bad_engine"
            )
        tensors = self._task.outputs[output].tensors
        if self.settled is not None and not tensors:
            raise LineageDiverged(f"{output!r} has more pieces than the {self.settled[output]} that are its answer")
        piece = check_piece(self._task, output, piece)
        if tensors:
            piece = [await self._carried(output, tensor) for tensor in piece]
        await stream.add(piece, tuple(tokens))

    async def _carried(self, output: str, tensor: Any) -> Inline | Ref:
        """A tensor as the log holds it."""
        if tensor.nbytes <= INLINE:
            return inline(tensor)
        expires = self._item.deadline + BLOCK_GRACE
        index = len(self._streamed)
        ref = await self._sidecar.put_copy(self._log_owner, output, index, tensor, expires=expires, wait=SPACE_WAIT)
        self._streamed.append(ref)
        return ref

    async def tensor(self, output: str, array: Any) -> None:
        self._expect_tensor(output)
        self._refs[output] = await self._sidecar.put_copy(
            self.owner, output, 0, array, expires=self._item.deadline + BLOCK_GRACE, wait=SPACE_WAIT
        )

    @asynccontextmanager
    async def reserve(self, output: str, shape: tuple[int, ...], dtype: str) -> AsyncIterator[Block]:
        self._expect_tensor(output)
        async with self._sidecar.put(
            self.owner, output, 0, shape, dtype, expires=self._item.deadline + BLOCK_GRACE, wait=SPACE_WAIT
        ) as block:
            crash_at("worker.granted")
            yield block
        self._refs[output] = block.ref

    def adopt(self, tensors: Sequence[Ref]) -> None:
        """Tensors that this attempt owns, though another one made them."""
        for ref in tensors:
            self._expect_tensor(ref.output)
            self._refs[ref.output] = ref

    @property
    def tensors(self) -> list[Ref]:
        """Its committed tensors that are not of streams."""
        return list(self._refs.values())

    async def commit(self, values: dict[str, Any]) -> dict[str, Any]:
        """Flushes the streams; the outputs as End stores them. Raises EngineError if one is missing or wrong."""
        inline = await self._inline(check_outputs(self._task, values))
        self._agree(inline)
        outputs: dict[str, Any] = inline | self._refs
        for output, stream in self._streams.items():
            await stream.close()
            outputs[output] = self._writers[output].n
            crash_at("worker.flushed")
        for task in self._firsts.values():
            await task
        if missing := self._kinds.keys() - outputs.keys():
            raise EngineError(f"the engine gave no {', '.join(sorted(missing))}", code="bad_engine")
        self._committed = True
        return outputs

    async def _inline(self, values: dict[str, Any]) -> dict[str, Any]:
        """The values that End carries: large parts go to the spool, and a mark stays."""
        large: dict[Upload, bytes] = {}
        inline: dict[str, Any] = without_large(values, large)
        spool = Spool(self._broker)
        for mark, data in large.items():
            await spool.put(data, mark.media_type, ttl=fact_ttl(self._item.deadline), deadline=self._item.deadline)
        return inline

    def _agree(self, values: dict[str, Any]) -> None:
        if self.settled is None:
            return
        for name, value in values.items():
            if encode(value) != encode(self.settled[name]):
                raise LineageDiverged(f"{name!r} is not what this node answered before its tensors were lost")

    async def close(self) -> None:
        """Ends background work; an attempt that did not commit stores nothing more and gives its blocks back."""
        if self._committed:
            return
        for stream in self._streams.values():
            await stream.abandon()
        for task in self._firsts.values():
            task.cancel()
        await asyncio.gather(*self._firsts.values(), return_exceptions=True)
        if self._refs:
            await self._sidecar.drop(self.owner)

    @property
    def tensor_bytes(self) -> int:
        return sum(ref.nbytes for ref in (*self._refs.values(), *self._streamed))

    def _expect_tensor(self, output: str) -> None:
        if self._kinds.get(output) != "tensor":
            raise EngineError(f"{output!r} is no tensor output of this task", code="bad_engine")

    def begun(self, output: str) -> None:
        """The first chunk of an output is stored: its First follows, beside the engine's work."""
        if output not in self._firsts:
            self.first_at = self.first_at or time.time()
            self._firsts[output] = asyncio.create_task(self._put_first(output))

    async def _put_first(self, output: str) -> None:
        crash_at("worker.chunk")
        item = self._item
        mark = First(node=item.node, gen=item.gen, attempt=self._attempt, output=output)
        await self._facts.put(
            first_subject(item.request, item.node, item.gen, output),
            encode(mark),
            deadline=item.deadline,
            unless=finish(item.request),
            ttl=fact_ttl(item.deadline),
        )
        crash_at("worker.first")


def _tokens(chunks: Sequence[Chunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.tokens]


class _Marking:
    """A ChunkWriter that says when its first chunk is stored."""

    def __init__(self, writer: ChunkWriter, outputs: Outputs, output: str) -> None:
        self._writer, self._outputs, self._output = writer, outputs, output

    async def append(self, payload: Any, tokens: tuple[int, ...] = ()) -> int:
        seq = await self._writer.append(payload, tokens)
        self._outputs.begun(self._output)
        return seq
