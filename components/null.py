"""The null engine: reads every input byte and answers with a digest, as value, tensor or stream, with a service time.

The answers are pure functions of the inputs (`digest`, `tensor_of`, `piece`), so a test computes them by itself and
sees a wrong, lost, doubled or swapped input.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
from collections.abc import Mapping
from typing import Any

import numpy as np

from components.engine import Call
from cornstalk.errors import EngineError
from cornstalk.task import UnitTask
from cornstalk.tasks.null import Null, NullStream, NullTensor, NullTensors

PIECE = 16
"""Characters of one piece of a NullStream, and of its source that make one."""
_KNOBS = frozenset({"service_ms", "fail", "pieces", "repeat", "source"})


def digest(name: str, inputs: Mapping[str, Any]) -> str:
    """32 hex characters over the component's name and every byte of every input but the knobs."""
    h = hashlib.blake2b(name.encode(), digest_size=16)
    for key in sorted(inputs.keys() - _KNOBS):
        h.update(f"|{key}=".encode())
        _feed(h, inputs[key])
    return h.hexdigest()


def _feed(h: Any, value: Any) -> None:
    if isinstance(value, np.ndarray):
        h.update(f"tensor{value.dtype}{value.shape}".encode())
        h.update(np.ascontiguousarray(value).data)
    elif isinstance(value, bytes):
        h.update(f"bytes{len(value)}".encode())
        h.update(value)
    elif isinstance(value, (list, tuple)):
        h.update(f"list{len(value)}".encode())
        for element in value:
            _feed(h, element)
    else:
        h.update(repr(value).encode())


def tensor_of(digest: str, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """uint8 [nbytes]: each 4 KiB page differs, so a shifted or torn read shows."""
    array = np.empty(nbytes, np.uint8)
    _fill(array, digest)
    return array


def _fill(array: np.ndarray[Any, Any], digest: str) -> None:
    seed = np.frombuffer(hashlib.blake2b(digest.encode(), digest_size=64).digest(), np.uint8)
    page = np.resize(seed, 4096)
    whole = len(array) // 4096 * 4096
    pages = array[:whole].reshape(-1, 4096)
    pages[:] = page
    pages[:, :4] = np.arange(len(pages), dtype="<u4").view(np.uint8).reshape(-1, 4)
    array[whole:] = page[: len(array) - whole]


def piece(seed: str, index: int, source: str = "") -> str:
    """Piece `index` of a NullStream: PIECE hex characters."""
    return hashlib.blake2b(f"{seed}:{index}:{source}".encode(), digest_size=PIECE // 2).hexdigest()


def stream_of(seed: str, pieces: int, source: str = "") -> str:
    """The whole text of a NullStream."""
    if source:
        parts = [source[i : i + PIECE] for i in range(0, len(source), PIECE)]
        return "".join(piece(seed, i, part) for i, part in enumerate(parts))
    return "".join(piece(seed, i) for i in range(pieces))


def tensor_after(seed: str, index: int, source: np.ndarray[Any, Any] | None, nbytes: int) -> np.ndarray[Any, Any]:
    """Tensor `index` of a NullTensors."""
    return tensor_of(digest(f"{seed}:{index}", {"made": source}), nbytes)


class NullEngine:
    """Holds no state; a crash loses nothing."""

    identity = "null"

    def __init__(self, task: UnitTask) -> None:
        assert isinstance(task, (Null, NullTensor, NullStream, NullTensors))
        self.task = task
        self.slots = task.slots
        self._running = 0
        self._longest = 0.0

    async def start(self) -> None:
        return

    async def stop(self) -> None:
        return

    def stats(self) -> dict[str, float]:
        return {"batch": float(self._running), "longest_step_s": self._longest}

    async def run(self, call: Call) -> dict[str, Any]:
        self._running += 1
        try:
            return await self._answer(call)
        finally:
            self._running -= 1

    async def _answer(self, call: Call) -> dict[str, Any]:
        mark = digest(self.task.name, call.inputs)
        if isinstance(self.task, NullStream):
            pieces = await self._stream(call, mark)
            if call.inputs["fail"]:
                raise EngineError("asked to fail", code="asked_to_fail")
            return {"pieces": pieces}
        if isinstance(self.task, NullTensors):
            return {"digest": await self._tensors(call)}
        await self._serve(call)
        if isinstance(self.task, NullTensor):
            if call.inputs["fail"] == "diverge":
                mark = digest(call.attempt, call.inputs)
            async with call.reserve("tensor", (call.inputs["nbytes"],), "uint8") as block:
                _fill(block.array, mark)
            return {"digest": mark}
        match call.inputs["fail"]:
            case "raise":
                raise EngineError("asked to fail", code="asked_to_fail")
            case "transient":
                raise EngineError("asked to fail for now", code="asked_to_wait", transient=True)
            case "bug":
                raise ZeroDivisionError("asked to have a bug")
            case "wrong_type":
                return {"digest": 7}
            case "exit":
                os._exit(70)
            case "segv":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "oom":
                os.kill(os.getpid(), signal.SIGKILL)
        return {"digest": mark * call.inputs["repeat"]}

    async def _serve(self, call: Call) -> None:
        seconds = call.inputs["service_ms"] / 1000
        self._longest = max(self._longest, seconds)
        if seconds:
            try:
                await asyncio.wait_for(call.cancelled.wait(), seconds)
            except TimeoutError:
                pass
        call.check()

    async def _stream(self, call: Call, mark: str) -> int:
        told = len("".join(str(p) for p in call.prior.get("text", ()))) // PIECE
        total: int = call.inputs["pieces"]
        if total:
            for index in range(told, total):
                await self._serve(call)
                await call.emit("text", piece(mark, index))
            return total
        index, rest = 0, ""
        async for part in call.inputs["source"]:
            rest += part
            while len(rest) >= PIECE:
                index, rest = await self._echo(call, mark, index, rest, told)
        if rest:
            index, rest = await self._echo(call, mark, index, rest, told)
        return index

    async def _tensors(self, call: Call) -> str:
        told = sum(len(piece) for piece in call.prior.get("tensors", ()))
        made: list[np.ndarray[Any, Any]] = []

        async def add(source: np.ndarray[Any, Any] | None) -> None:
            await self._serve(call)
            made.append(tensor_after(call.inputs["text"], len(made), source, call.inputs["nbytes"]))
            if len(made) > told:
                await call.emit("tensors", made[-1:])

        for _ in range(call.inputs["pieces"]):
            await add(None)
        async for tensors in call.inputs["source"]:
            for tensor in tensors:
                await add(tensor)
        return digest(self.task.name, {"made": made})

    async def _echo(self, call: Call, mark: str, index: int, rest: str, told: int) -> tuple[int, str]:
        if index >= told:
            await self._serve(call)
            await call.emit("text", piece(mark, index, rest[:PIECE]))
        return index + 1, rest[PIECE:]
