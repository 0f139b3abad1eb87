"""The budget of all arenas: what is free for blocks."""

from __future__ import annotations

from sidecar.pool import SMALLEST, Pool


def test_an_arena_takes_nothing_from_what_is_free_only_its_blocks_do() -> None:
    pool = Pool(8 * SMALLEST)
    held = pool.begin(1, 6 * SMALLEST)
    assert (pool.free, pool.largest) == (8 * SMALLEST, 2 * SMALLEST)
    pool.discard(held)
    assert pool.free == pool.largest == 8 * SMALLEST
