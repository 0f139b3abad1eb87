"""A fake executor: every node a coroutine, completion order random, streams piece by piece, failures on demand."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

from cornstalk.messages import Edge, Error, Extension, Node, extensions, substitute
from cornstalk.task import UnitTask
from cornstalk.values import check_outputs, check_piece
from tests.cornstalk.model.store import Output, Store, error_of, whole


class Upstream(Exception):
    """An input has failed."""


class Executor:
    """Runs nodes with the engine of their task's class. `tasks`: component -> task."""

    def __init__(self, engines: dict[str, Callable[..., Any]], tasks: dict[str, UnitTask], seed: int = 0) -> None:
        self.engines, self.tasks, self.random = engines, tasks, random.Random(seed)
        self.running: dict[str, asyncio.Task[None]] = {}
        self.ids: dict[str, str] = {}
        self.ran: list[str] = []  # ids of nodes whose engine started
        self.order: list[tuple[str, str]] = []
        self.cancelled: list[str] = []
        self.now = self.peak = 0

    def send(self, store: Store, nodes: list[Node]) -> None:
        for node in nodes:
            self.ids[node.token] = node.id
            if node.token not in store.ends and node.token not in self.running:
                self.running[node.token] = asyncio.create_task(self.work(store, node))

    def cancel(self, tokens: list[str]) -> None:
        for token in tokens:
            self.cancelled.append(self.ids[token])
            if job := self.running.get(token):
                job.cancel()

    def crash(self) -> None:
        for job in self.running.values():
            job.cancel()
        self.running.clear()

    async def work(self, store: Store, node: Node) -> None:
        started = 0
        try:
            for edge in extensions(node.inputs):
                assert isinstance(edge, Edge)
                await self.known(store, edge)
            inputs = substitute(node.inputs, lambda e: self.value(store, e))
            self.ran.append(node.id)
            self.order.append(("start", node.id))
            self.now += (started := 1)
            self.peak = max(self.peak, self.now)
            for _ in range(self.random.randrange(6)):
                await asyncio.sleep(0)
            outputs = await self.run(store, node, self.tasks[node.component], inputs)
            self.order.append(("end", node.id))
            store.put_end(node.token, outputs)
        except Upstream as error:
            store.put_end(
                node.token, error=Error(code="upstream", message=f"its input {error} failed", node=node.token)
            )
        except Exception as error:
            store.put_end(node.token, error=error_of(error, node))
        finally:
            self.now -= started

    async def known(self, store: Store, edge: Edge) -> None:
        while edge.node not in store.ends and not (edge.stream and store.pieces.get((edge.node, edge.output))):
            await store.changed.wait()
        if edge.node in store.ends and store.ends[edge.node][2] is not None:
            raise Upstream(self.ids[edge.node])

    def value(self, store: Store, edge: Extension) -> Any:
        assert isinstance(edge, Edge)
        output = (edge.node, edge.output)
        if edge.stream:
            return self.arriving(store, output)
        if output in store.tensors:
            return store.tensors[output]
        return store.results()[edge.node].outputs[edge.output]

    async def run(self, store: Store, node: Node, task: UnitTask, inputs: dict[str, Any]) -> dict[str, Any]:
        result = self.engines[type(task).__name__](**inputs)
        given: dict[str, Any] = {}
        if hasattr(result, "__aiter__"):
            async for name, piece in result:
                if node.outputs[name] == "stream":
                    pieces = given.setdefault(name, [])
                    store.put_piece((node.token, name), len(pieces), check_piece(task, name, piece))
                    pieces.append(piece)
                    for _ in range(self.random.randrange(3)):
                        await asyncio.sleep(0)
                else:
                    given[name] = piece
        else:
            given = result
        outputs = check_outputs(task, {n: v for n, v in given.items() if node.outputs[n] == "value"})
        outputs |= {n: whole(v) for n, v in given.items() if node.outputs[n] == "stream"}
        return outputs | {
            n: store.put_tensor((node.token, n), v) for n, v in given.items() if node.outputs[n] == "tensor"
        }

    async def arriving(self, store: Store, output: Output) -> AsyncIterator[Any]:
        at = 0
        while True:
            changed, have = store.changed, store.pieces.get(output, [])
            while at < len(have):
                yield have[at]
                at += 1
            if (end := store.ends.get(output[0])) is not None:
                if end[2] is not None:
                    raise Upstream(self.ids[output[0]])
                return
            await changed.wait()
