"""Arenas: populated, private to their producer, and gone with their last mapping."""

from __future__ import annotations

import errno
import mmap
import os

import pytest

from sidecar import arena
from sidecar.allocator import UNIT
from sidecar.arena import SEAL, Mapping
from sidecar.errors import Denied

SIZE = 1 << 20


@pytest.fixture
def sealed() -> tuple[Mapping, int]:
    descriptor = arena.create(SIZE)
    producer = Mapping(os.dup(descriptor), SIZE, writable=True)
    return producer, arena.seal(descriptor)


def test_the_producer_still_writes_and_a_reader_sees_it(sealed: tuple[Mapping, int]) -> None:
    producer, descriptor = sealed
    reader = Mapping(os.dup(descriptor), SIZE, writable=False)
    reader.populate(writable=False)
    assert arena.is_sealed(descriptor)
    os.close(descriptor)
    producer._mmap[4096:4101] = b"hello"
    assert reader._mmap[4096:4101] == b"hello"


def test_nobody_else_gets_a_writable_mapping(sealed: tuple[Mapping, int]) -> None:
    _, descriptor = sealed
    again = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)  # the mode of a memfd does not forbid this; the seal must
    with pytest.raises(PermissionError):
        mmap.mmap(descriptor, SIZE)
    with pytest.raises(PermissionError):
        mmap.mmap(again, SIZE)
    with pytest.raises(PermissionError):
        os.write(again, b"x")
    for size in (0, 2 * SIZE):
        with pytest.raises(PermissionError):
            os.ftruncate(again, size)
    os.close(again)
    os.close(descriptor)


def test_all_pages_exist_before_use_and_none_stays_mapped_by_the_maker() -> None:
    descriptor = arena.create(32 << 20)
    assert os.fstat(descriptor).st_blocks * 512 == (32 << 20) + (32 << 20) // UNIT * SEAL
    with open("/proc/self/smaps") as maps:
        assert "cornstalk-arena" not in maps.read()
    os.close(descriptor)


def test_an_arena_is_no_file_that_could_be_left_behind() -> None:
    descriptor = arena.create(SIZE)
    assert os.readlink(f"/proc/self/fd/{descriptor}").startswith("/memfd:")
    assert os.fstat(descriptor).st_nlink == 0
    os.close(descriptor)


def test_an_arena_smaller_than_told_is_refused() -> None:
    descriptor = arena.create(SIZE)
    with pytest.raises(Denied):
        Mapping(os.dup(descriptor), 2 * SIZE, writable=True)
    assert not arena.is_sealed(descriptor)
    os.close(descriptor)


def test_memory_that_cannot_be_had_is_an_error_not_a_crash() -> None:
    with pytest.raises(OSError) as caught:
        arena.create(1 << 62)
    assert caught.value.errno in (errno.ENOMEM, errno.EINVAL, errno.EFBIG)
