"""Other processes for tests: each has a sidecar client of its own, does as told, and may be killed at any time."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
import zlib
from contextlib import AsyncExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from cornstalk.messages import decode_value, encode
from sidecar.client import SidecarClient
from sidecar.messages import Owner
from sidecar.tensors import Lease

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.sidecar.actors"])


def pattern(seed: int, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Bytes that differ at every offset and for every seed."""
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def checksum(array: np.ndarray[Any, Any]) -> int:
    return zlib.crc32(np.ascontiguousarray(array).view(np.uint8).data)


MINE = Owner("actor", "n", 0, "a")


class Refused(Exception):
    """Raised for what the other process met."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


class Actor:
    """Handle of the process."""

    def __init__(self, path: Path, quota: int, limit: int) -> None:
        self._pipe, theirs = _context.Pipe()
        self.process = _context.Process(target=_main, args=(theirs, str(path), quota, limit), daemon=True)
        self.process.start()
        theirs.close()

    async def call(self, name: str, *arguments: Any, within: float = 10.0) -> Any:
        """Result of a method of `_Hands`; raises Refused with what it raised."""
        self._pipe.send((name, arguments))
        return await self.answer(within)

    async def answer(self, within: float = 10.0) -> Any:
        if not await asyncio.to_thread(self._pipe.poll, within):
            raise AssertionError("no answer from the other process")
        kind, result = self._pipe.recv()
        if kind:
            raise Refused(kind, result)
        return decode_value(result)

    def begin(self, name: str, *arguments: Any) -> None:
        """A call whose answer nobody waits for."""
        self._pipe.send((name, arguments))

    def kill(self) -> None:
        self.process.kill()
        self.process.join(10)
        self._pipe.close()


class _Hands:
    """What an actor can do. Leases are kept until the process ends, or `forget`, open blocks until it ends."""

    def __init__(self, client: SidecarClient) -> None:
        self.client = client
        self.leases: list[tuple[Lease, int]] = []  # with the checksum that it had
        self.open = AsyncExitStack()

    async def put(self, owner: tuple[str, str, int, str], index: int, seed: int, nbytes: int, wait: float) -> Any:
        data = pattern(seed, nbytes)
        return await self.client.put_copy(Owner(*owner), "out", index, data, expires=time.time() + 60, wait=wait)

    async def put_and_stand_still(self, index: int, seed: int, nbytes: int, told: str) -> None:
        """The Ref lies in the file `told`; the event loop does not turn any more."""
        ref = await self.put(("actor", "n", 0, "a"), index, seed, nbytes, 2.0)
        Path(f"{told}.new").write_bytes(encode(ref))
        os.rename(f"{told}.new", told)
        time.sleep(60)  # noqa: ASYNC251 just that

    async def recall(self, key: str) -> bool | None:
        """None: its turn."""
        return None if await self.client.recall(key, MINE, expires=time.time() + 60, wait=2.0) is None else True

    async def find_or_make(self, keys: list[str], first: int) -> list[int]:
        """The checksums of what the keys stand for, made here where nobody else has: the pattern of its last digit."""
        sums = {}
        for key in [*keys[first:], *keys[:first]]:
            owner = Owner("cached", key, 0, str(os.getpid()))
            found = await self.client.recall(key, owner, expires=time.time() + 60, wait=10.0)
            if found is None:
                data = pattern(int(key[-1]), 5000)
                refs = [await self.client.put_copy(owner, "out", 0, data, expires=time.time() + 60, wait=2.0)]
                await self.client.remember(key, b"", refs)
            else:
                refs = found.refs
            with await self.client.get(refs[0]) as lease:
                sums[key] = checksum(lease.array)
            await self.client.drop(owner)
        return [sums[key] for key in keys]

    async def write(self, owner: tuple[str, str, int, str], nbytes: int) -> None:
        """Fills half of a block and leaves it open."""
        put = self.client.put(Owner(*owner), "out", 0, nbytes, "uint8", expires=time.time() + 60, wait=2.0)
        block = await self.open.enter_async_context(put)
        block.array[: nbytes // 2] = 7

    async def get(self, ref: Any, keep: bool) -> int:
        lease = await self.client.get(ref)
        result = checksum(lease.array)
        if keep:
            self.leases.append((lease, result))
        else:
            lease.release()
        return result

    async def forget(self) -> int:
        """Gives all leases back, whose memory must be as it was; how many there were."""
        held, self.leases = self.leases, []
        for lease, before in held:
            assert checksum(lease.array) == before, "memory changed under a lease"
            lease.release()
        return len(held)

    async def connected(self) -> bool:
        return self.client.connected

    async def will(self, item: str, reply: str) -> None:
        await self.client.will(item, reply)

    async def will_done(self, item: str) -> None:
        await self.client.will_done(item)


def _main(pipe: Connection, path: str, quota: int, limit: int) -> None:
    asyncio.run(_serve(pipe, path, quota, limit))


async def _serve(pipe: Connection, path: str, quota: int, limit: int) -> None:
    hands = _Hands(await SidecarClient.connect(path, name="actor", quota=quota, limit=limit, wait=60.0))
    while True:
        name, arguments = await asyncio.to_thread(pipe.recv)
        if name == "get":
            arguments = (decode_value(arguments[0]), *arguments[1:])
        try:
            result = await getattr(hands, name)(*arguments)
            pipe.send(("", encode(result)))
        except Exception as error:
            pipe.send((type(error).__name__, str(error)))
