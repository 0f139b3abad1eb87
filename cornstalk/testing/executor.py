"""Stands for broker, dispatcher and workers: runs calls whose inputs are there, in an order that the test chooses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from cornstalk.large import with_large
from cornstalk.messages import Edge, Error, Extension, Node, Upload, extensions, substitute
from cornstalk.task import UnitTask
from cornstalk.testing.engines import Fakes, Given, bytes_of, checked, failure_of, given_by, one_piece, whole
from cornstalk.testing.store import Crashed, Output, Store
from cornstalk.testing.turns import Turns
from cornstalk.values import check_piece


class Upstream(Exception):
    """An input has failed: the call never runs."""


class StreamFailed(Exception):
    """A stream that is being read has failed."""


class Executor:
    """Runs nodes with fake engines. `tasks`: component -> task."""

    def __init__(self, fakes: Fakes, tasks: Mapping[str, UnitTask], turns: Turns) -> None:
        self._fakes, self._tasks, self._turns = fakes, tasks, turns
        self._running: dict[str, asyncio.Task[None]] = {}
        self.ids: dict[str, str] = {}
        self.ran: list[str] = []  # ids of nodes whose engine started
        self.events: list[tuple[str, str]] = []  # ("start" or "end", id)
        self.cancelled: list[str] = []
        self.now = self.peak = 0

    def send(self, store: Store, nodes: list[Node]) -> None:
        """Starts what is not done and not under way."""
        for node in nodes:
            self.ids[node.token] = node.id
            self._turns.enter(node.id)
            if node.token not in store.ends and node.token not in self._running:
                self._running[node.token] = asyncio.create_task(self._work(store, node))

    def cancel(self, tokens: list[str]) -> None:
        for token in tokens:
            self.cancelled.append(self.ids[token])
            if job := self._running.get(token):
                job.cancel()

    @property
    def under_way(self) -> list[str]:
        """Ids of the calls that have not ended, those that wait for an input included."""
        return [self.ids[token] for token, job in self._running.items() if not job.done()]

    def crash(self) -> None:
        """Everything under way is gone."""
        self._turns.stop()
        for job in self._running.values():
            job.cancel()
        self._running.clear()

    async def _work(self, store: Store, node: Node) -> None:
        try:
            await self._run(store, node, self._tasks[node.component])
        except (Upstream, Crashed):
            return
        except AssertionError as error:
            store.mistake(error)

    async def _run(self, store: Store, node: Node, task: UnitTask) -> None:
        pieces = self._fakes.takes_pieces(task)
        for edge in extensions(node.inputs):
            if isinstance(edge, Edge):
                await self._known(store, edge, pieces)
        inputs = self._inputs(store, node, task, pieces)
        self.ran.append(node.id)
        self.events.append(("start", node.id))
        self.now += 1
        self.peak = max(self.peak, self.now)
        try:
            outputs = await self._outputs(store, node, task, inputs)
            self.events.append(("end", node.id))
            store.put_end(node.token, outputs)
        except StreamFailed as error:
            message = f"the stream it reads ended early: {error}"
            store.put_end(node.token, error=Error(code="input_failed", message=message, node=node.token))
        except (AssertionError, Upstream):
            raise
        except Exception as error:
            store.put_end(node.token, error=failure_of(error, node))
        finally:
            self.now -= 1

    async def _known(self, store: Store, edge: Edge, pieces: bool) -> None:
        output = (edge.node, edge.output)
        while edge.node not in store.ends and not (pieces and edge.stream and store.pieces.get(output)):
            await store.change()
        if edge.node in store.ends and store.ends[edge.node][2] is not None:
            raise Upstream(self.ids[edge.node])

    def _inputs(self, store: Store, node: Node, task: UnitTask, pieces: bool) -> dict[str, Any]:
        inputs: dict[str, Any] = {}
        for name, value in with_large(node.inputs, store.large).items():
            arriving = pieces and task.inputs[name].kind == "stream"
            if arriving and isinstance(value, Edge) and value.stream:
                inputs[name] = self._arriving(store, (value.node, value.output))
            else:
                whole = substitute(value, lambda e: self._value(store, e))
                inputs[name] = one_piece(whole) if arriving else whole
        return inputs

    def _value(self, store: Store, extension: Extension) -> Any:
        if isinstance(extension, Upload):
            return bytes_of(extension)
        assert isinstance(extension, Edge)
        output = (extension.node, extension.output)
        if output in store.tensors:
            return store.tensors[output]
        return (store.results()[extension.node].outputs or {})[extension.output]

    async def _outputs(self, store: Store, node: Node, task: UnitTask, inputs: dict[str, Any]) -> dict[str, Any]:
        await self._turns.turn(node.id)
        result = self._fakes.call(task, inputs)
        if hasattr(result, "__aiter__"):
            given = await self._streamed(store, node, task, result)
        else:
            given = given_by(task, result)
            for name, pieces in given.streams.items():
                for index, piece in enumerate(pieces):
                    store.put_piece((node.token, name), index, piece)
                    await self._turns.turn(node.id)
        outputs = dict(given.values)
        for name, port in task.outputs.items():
            if port.tensors:
                store.put_tensor((node.token, name), whole(port, given.streams.get(name, [])))
            elif port.kind == "stream":
                outputs[name] = whole(port, given.streams.get(name, []))
            elif port.kind == "tensor":
                outputs[name] = store.put_tensor((node.token, name), given.tensors[name])
        return outputs

    async def _streamed(self, store: Store, node: Node, task: UnitTask, result: AsyncIterator[Any]) -> Given:
        given = Given()
        async for name, piece in result:
            kind = task.outputs[name].kind if name in task.outputs else "value"
            if kind == "stream":
                pieces = given.streams.setdefault(name, [])
                store.put_piece((node.token, name), len(pieces), check_piece(task, name, piece))
                pieces.append(piece)
                await self._turns.turn(node.id)
            else:
                (given.tensors if kind == "tensor" else given.values)[name] = piece
        return checked(task, given)

    async def _arriving(self, store: Store, output: Output) -> AsyncIterator[Any]:
        async for piece in store.read(output):
            yield piece
        if (error := store.ends[output[0]][2]) is not None:
            raise StreamFailed(error.message)
