"""The gates of the sidecar within a host, each beside the floors of the same run. Milliseconds, medians of p50s.

A producer (this process), a reader and the daemon are three processes. What is timed begins when the producer calls
`put_copy` (or has written the last byte of a block in place) and ends when the reader holds its view; the Ref goes from
one to the other over a socket, as NATS would carry it. The floors: memcpy between two arrays of that size, and `wake`,
one datagram from the producer to the event loop of the reader, without which nobody can hand anything over; it is part
of each figure. What the reader here then does to take a Ref out of the datagram is not: that is `taken`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import uvloop

from cornstalk.messages import Ref, decode_value, encode
from sidecar.client import SidecarClient
from sidecar.errors import Full
from sidecar.messages import Owner

KIB, MIB = 1 << 10, 1 << 20
COPIES: Final = {"64KiB": (64 * KIB, 60), "1MiB": (MIB, 40), "8MiB": (8 * MIB, 20), "64MiB": (64 * MIB, 4)}
"""Size and repetitions in one round."""
DIRECT: Final = ("64KiB", "1MiB", "8MiB")
WAKES: Final = 60
WAKE: Final = b"wake"
TOTAL: Final = 512 * MIB
OWNER: Final = Owner("bench", "node", 0, "attempt")
WAIT: Final = 0.1
"""Seconds until Full."""


async def run(rounds: int = 5) -> dict[str, Any]:
    """Figures, floors, ratios and bars. To be run on uvloop, as the services are."""
    with tempfile.TemporaryDirectory(prefix="sc-") as folder, _daemon(Path(folder) / "s.sock") as (path, daemon):
        bench = _Bench(path)
        await bench.start()
        try:
            for _ in range(rounds):
                for size in COPIES:
                    await bench.copies(size)
                for size in DIRECT:
                    await bench.direct(size)
                await bench.wakes()
                await bench.kill_to_free()
                await bench.full()
            return _report(bench, daemon.pid)
        finally:
            await bench.stop()


class _Bench:
    """`samples` holds the p50 of each round, `floors` those of what nobody can do without, in milliseconds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.samples: dict[str, list[float]] = {}
        self.floors: dict[str, list[float]] = {}
        self._index = 0
        self._taken: list[float] = []

    async def start(self) -> None:
        self.producer = await SidecarClient.connect(self.path, name="producer", quota=192 * MIB)
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        self._reader = _process("read", str(self.path), str(theirs.fileno()), pass_fds=[theirs.fileno()])
        theirs.close()
        self._source = np.random.default_rng(1).integers(0, 256, 64 * MIB, np.uint8)
        self._target = np.zeros_like(self._source)
        for size in COPIES:
            await self.copies(size)
        self.samples.clear()
        self.floors.clear()

    async def stop(self) -> None:
        self._reader.terminate()
        self._reader.wait(10)
        self._ours.close()
        await self.producer.close()

    async def copies(self, size: str) -> None:
        nbytes, repetitions = COPIES[size]
        source, target = self._source[:nbytes], self._target[:nbytes]
        times, floors = [], []
        for _ in range(repetitions):
            begun = time.monotonic()
            np.copyto(target, source)
            floors.append(time.monotonic() - begun)
            begun = time.monotonic()
            ref = await self.producer.put_copy(OWNER, "out", self._next(), source, expires=time.time() + 60, wait=2.0)
            times.append(await self._viewed(ref) - begun)
        _note(self.samples, f"copy_{size}", times)
        _note(self.floors, f"copy_{size}", floors)

    async def direct(self, size: str) -> None:
        nbytes, repetitions = COPIES[size]
        times = []
        for _ in range(repetitions):
            put = self.producer.put(OWNER, "out", self._next(), nbytes, "uint8", expires=time.time() + 60, wait=2.0)
            async with put as block:
                block.array.fill(self._index % 251)
                begun = time.monotonic()
            times.append(await self._viewed(block.ref) - begun)
        _note(self.samples, f"direct_{size}", times)

    async def wakes(self) -> None:
        times = []
        for _ in range(WAKES):
            begun = time.monotonic()
            times.append(await self._answered(WAKE) - begun)
            await self.producer.stats()  # the reader sleeps again, as before each tensor
        _note(self.floors, "wake", times)
        _note(self.floors, "taken", self._taken)
        self._taken.clear()

    async def kill_to_free(self) -> None:
        with _process("hold", str(self.path), stdout=subprocess.PIPE) as holder:
            assert holder.stdout is not None
            await asyncio.to_thread(holder.stdout.readline)
            before = (await self.producer.stats()).granted_bytes
            begun = time.monotonic()
            holder.send_signal(signal.SIGKILL)
            while (await self.producer.stats()).granted_bytes > before - 8 * MIB:
                pass
            _note(self.samples, "kill_to_free", [time.monotonic() - begun])

    async def full(self) -> None:
        client = await SidecarClient.connect(self.path, name="full", quota=MIB, limit=MIB)
        await client.put_copy(OWNER, "out", self._next(), self._source[:MIB], expires=time.time() + 60, wait=2.0)
        begun = time.monotonic()
        try:
            await client.put_copy(OWNER, "out", self._next(), self._source[:MIB], expires=time.time() + 60, wait=WAIT)
        except Full:
            _note(self.samples, "full_after_deadline", [time.monotonic() - begun - WAIT])
        await client.drop(OWNER)
        await client.close()

    async def _viewed(self, ref: Ref) -> float:
        """When the reader had its view (monotonic seconds, the same clock in all processes)."""
        there = await self._answered(encode(ref))
        await self.producer.drop(OWNER)
        await self.producer.stats()  # the daemon has done all that: it is not timed with the next
        return there

    async def _answered(self, message: bytes) -> float:
        """When the reader had what it was sent (monotonic seconds, the same clock in all processes)."""
        self._ours.send(message)
        there, taken = decode_value(await asyncio.get_running_loop().sock_recv(self._ours, 64))
        if message != WAKE:
            self._taken.append(taken)
        return float(there)

    def _next(self) -> int:
        self._index += 1
        return self._index


def _report(bench: _Bench, daemon: int) -> dict[str, Any]:
    figures = {name: round(statistics.median(values), 4) for name, values in bench.samples.items()}
    floor = {name: round(statistics.median(values), 4) for name, values in bench.floors.items()}
    bar = {
        "copy_64KiB": 0.12,
        "copy_1MiB": floor["copy_1MiB"] + 0.12,
        "copy_8MiB": min(1.5 * floor["copy_8MiB"] + 0.15, 2.0),
        "copy_64MiB": 1.25 * floor["copy_64MiB"],
        **{f"direct_{size}": 0.15 for size in DIRECT},
        "kill_to_free": 50.0,
        "full_after_deadline": 10.0,
        "daemon_rss_mb": 150.0,
    }
    figures["daemon_rss_mb"] = _rss_mb(daemon)
    return {
        "name": "sidecar",
        "unit": "ms",
        "figures": figures,
        "floor": floor,
        "ratio": {
            name: round(value / floor.get(name, floor["wake"]), 2)
            for name, value in figures.items()
            if name.startswith(("copy_", "direct_"))
        },
        "bar": {name: round(value, 4) for name, value in bar.items()},
        "ok": all(figures[name] <= value for name, value in bar.items()),
    }


@contextmanager
def _daemon(path: Path) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    # a port where nobody listens: the tensor path must not need NATS
    environment = {**os.environ, "CORNSTALK_NATS_URL": "nats://127.0.0.1:9"}
    command = [sys.executable, "-m", "sidecar", "--socket", str(path), "--bytes", str(TOTAL)]
    daemon = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        yield path, daemon
    finally:
        daemon.terminate()
        daemon.wait(10)


def _process(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "bench.sidecar", *arguments], **options)


def _note(notes: dict[str, list[float]], name: str, seconds: list[float]) -> None:
    notes.setdefault(name, []).append(statistics.median(seconds) * 1000)


def _rss_mb(pid: int) -> float:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return round(int(status["VmRSS"].split()[0]) / 1024, 1)


async def _read(path: str, descriptor: int) -> None:
    """The reader: a Ref comes in, and the moment of its view goes back. It waits as the NATS client does.

    While it takes the Ref out of the datagram the clock stands: that is the business of who carries a Ref.
    """
    loop = asyncio.get_running_loop()
    client = await SidecarClient.connect(path, name="reader", quota=0)
    ended = asyncio.Event()
    tasks: set[asyncio.Task[None]] = set()

    async def view(data: bytes, woken: float) -> None:
        ref = decode_value(data)
        taken = time.monotonic() - woken
        with await client.get(ref) as lease:
            array = lease.array
            there = time.monotonic()
            del array
        await asyncio.sleep(0)  # the lease has ended
        answer(there - taken, taken)

    def readable() -> None:
        woken = time.monotonic()
        data = notify.recv(4096)
        if data == WAKE:
            answer(woken, 0.0)
        elif data:
            task = loop.create_task(view(data, woken))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        else:
            loop.remove_reader(descriptor)
            ended.set()

    def answer(there: float, taken: float) -> None:
        notify.send(encode([there, taken]))

    with socket.socket(fileno=descriptor) as notify:
        notify.setblocking(False)
        loop.add_reader(descriptor, readable)
        await ended.wait()
    await client.close()


async def _hold(path: str) -> None:
    """A producer that dies while it writes."""
    client = await SidecarClient.connect(path, name="holder", quota=16 * MIB)
    async with client.put(OWNER, "out", 0, 8 * MIB, "uint8", expires=time.time() + 60, wait=5.0) as block:
        block.array.fill(1)
        print("holding", flush=True)
        await asyncio.sleep(60)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["read", path, descriptor]:
            uvloop.run(_read(path, int(descriptor)))
        case ["hold", path]:
            uvloop.run(_hold(path))
