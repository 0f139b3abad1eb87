"""Hidden states out of vLLM while it draws: who wants them, of which tokens a step is, and the way to the worker.

vLLM itself gives nothing of a step but tokens. A connector (for keys and values, of which it carries none) is told by
the scheduler whose tokens each step computes; the model hands it the states of the step; what somebody wants goes to
the worker over a socket. Under tensor parallelism all ranks have the same states: the first sends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from components.tensors import array_of, inline, torch_of
from cornstalk.messages import Inline

log = logging.getLogger(__name__)

HELD: Final = 32
"""Messages that wait at either end of the way, at most: one for each request of a step."""
TAKEN_WITHIN: Final = 60.0
"""Seconds."""
HEARD_AS: Final = "cornstalk_heard_as"
"""Under which name, among the extra arguments of a request, its states go out; without one they do not."""
Hear = Callable[[int, Any], None]
"""Takes the index of a token in its sequence and the states [2, n, size] of it and those after it: what the model read
and what its head gets. A part that vLLM had to compute again comes again."""


class Told(msgspec.Struct, frozen=True):
    """States of consecutive tokens of one request: dtype, shape and bytes as of an Inline."""

    heard_as: str
    start: int
    dtype: str
    shape: tuple[int, ...]
    data: bytes


class States:
    """The end of the way, in the worker. Lives on the event loop. What is killed leaves a socket that nobody hears."""

    def __init__(self) -> None:
        import zmq.asyncio  # type: ignore[import-not-found] # comes with vLLM

        # a file: those without may be written to by any user
        self.address = f"ipc://{tempfile.gettempdir()}/cornstalk-{secrets.token_hex(8)}"
        self._socket = zmq.asyncio.Context.instance().socket(zmq.PULL)
        self._socket.set_hwm(HELD)
        self._socket.bind(self.address)
        self._hearing: dict[str, Hear] = {}
        self._reading = asyncio.create_task(self._read())
        self._reading.add_done_callback(_ended)

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.wait([self._reading])
        self._socket.close(linger=0)

    @contextmanager
    def hearing(self, heard_as: str, hear: Hear) -> Iterator[None]:
        self._hearing[heard_as] = hear
        try:
            yield
        finally:
            del self._hearing[heard_as]

    async def _read(self) -> None:
        decoder = msgspec.msgpack.Decoder(Told)
        while True:
            told = decoder.decode(await self._socket.recv())
            if hear := self._hearing.get(told.heard_as):
                hear(told.start, torch_of(array_of(Inline(told.dtype, told.shape, told.data))))


def _ended(reading: asyncio.Task[None]) -> None:
    """Without it no reply would end: the worker does, to be started anew."""
    if not reading.cancelled() and (error := reading.exception()):
        log.error("states of vLLM are not heard any more: %r", error)
        os.kill(os.getpid(), signal.SIGTERM)


class Sender:
    """The beginning of the way, in a process of vLLM, whose steps wait for a worker that reads more slowly."""

    def __init__(self, address: str, within: float = TAKEN_WITHIN) -> None:
        import zmq

        self._within = within
        self._socket = zmq.Context.instance().socket(zmq.PUSH)
        self._socket.set_hwm(HELD)
        self._socket.sndtimeo = int(within * 1000)
        self._socket.linger = 0
        self._socket.connect(address)

    def close(self) -> None:
        self._socket.close()

    def send(self, heard_as: str, start: int, states: Any) -> None:
        """Blocks. Raises TimeoutError, with which vLLM ends and its worker starts anew."""
        import zmq

        tensor = inline(states)
        try:
            self._socket.send(msgspec.msgpack.encode(Told(heard_as, start, tensor.dtype, tensor.shape, tensor.data)))
        except zmq.Again as error:
            raise TimeoutError(f"the worker has read no hidden states for {self._within:g} s") from error


@dataclass(frozen=True)
class Part:
    """Of a step: `count` tokens of one request, the first with index `start` in its sequence, whose key and value lie
    in `slot`.
    """

    heard_as: str
    start: int
    count: int
    slot: int
