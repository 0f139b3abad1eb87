"""Memory that processes share: one memfd per arena, populated before use, sealed so that only its producer writes.

A memfd has no name: whatever dies, the kernel takes the pages back with the last mapping. Behind the bytes for tensors
lie the seals, with which the producer says what it has committed (`sidecar.board`).
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from typing import Final

import numpy as np

from sidecar.allocator import UNIT, rounded
from sidecar.errors import Denied

MADV_POPULATE_READ: Final = 22
MADV_POPULATE_WRITE: Final = 23
F_SEAL_FUTURE_WRITE: Final = 0x10
SEALS: Final = F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
STEP: Final = 16 << 20
"""Bytes populated by one call."""
SEAL: Final = 16
"""Bytes of the seal of one unit."""

_libc = ctypes.CDLL(None, use_errno=True)
_madvise = _libc.madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Mapping:
    """One mapping of an arena; unmapped when nothing refers to it any more, views included."""

    def __init__(self, descriptor: int, size: int, *, writable: bool) -> None:
        """Takes over `descriptor` (closed here). `size`: bytes for tensors. Raises Denied if it is smaller, OSError."""
        whole = _whole(size)
        try:
            if os.fstat(descriptor).st_size < whole:
                raise Denied("the arena is smaller than told")
            protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
            self._mmap = mmap.mmap(descriptor, whole, prot=protection)
        finally:
            os.close(descriptor)
        self.size = size
        self.address = _address(self._mmap)
        self.seals = memoryview(self._mmap)[size : size + size // UNIT * SEAL].cast("Q")

    def populate(self, *, writable: bool) -> None:
        """Fills the page table, so that no later touch faults. May block for 0.1 to 1 s per GiB; not under the GIL."""
        _populate(self.address, _whole(self.size), MADV_POPULATE_WRITE if writable else MADV_POPULATE_READ)


def create(size: int) -> int:
    """Descriptor of a new arena whose pages all exist. Blocks for seconds per GiB; raises OSError if memory is short.

    `size`: bytes for tensors, a multiple of the unit. Nothing stays mapped here: the pages belong to the arena, not to
    this process.
    """
    return new("cornstalk-arena", _whole(size))


def new(name: str, size: int) -> int:
    """Descriptor of `size` bytes of zeros, populated, that can be sealed. Raises OSError."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        with mmap.mmap(descriptor, size) as mapping:
            _populate(_address(mapping), size, MADV_POPULATE_WRITE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def seal(descriptor: int) -> int:
    """Refuses every new writable mapping, write and resize from now on; existing mappings still write.

    Returns a read-only descriptor for readers in exchange for `descriptor`, which is closed.
    """
    try:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
        return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(descriptor)


def is_sealed(descriptor: int) -> bool:
    """Whether the arena can neither shrink under a reader nor be written by a newcomer."""
    return fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & SEALS == SEALS


def available() -> int:
    """Bytes of memory that this host could give to arenas without swapping."""
    with open("/proc/meminfo") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name == "MemAvailable":
                return int(value.split()[0]) * 1024
    raise OSError("no MemAvailable in /proc/meminfo")


def _whole(size: int) -> int:
    return size + rounded(size // UNIT * SEAL)


def _populate(address: int, size: int, advice: int) -> None:
    # mmap.madvise would hold the GIL, and with it the event loop, for all that time
    for start in range(0, size, STEP):
        if _madvise(address + start, min(STEP, size - start), advice):
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))


def _address(mapping: mmap.mmap) -> int:
    probe = memoryview(mapping)
    try:
        return int(np.frombuffer(probe, np.uint8).__array_interface__["data"][0])
    finally:
        del probe
