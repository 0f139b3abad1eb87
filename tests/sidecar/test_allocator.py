"""The allocator against its three promises, for any order of calls."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sidecar.allocator import UNIT, Allocator, rounded


class Allocations(RuleBasedStateMachine):
    @initialize(units=st.integers(1, 64))
    def start(self, units: int) -> None:
        self.allocator = Allocator(units * UNIT)
        self.live: dict[int, int] = {}

    @rule(nbytes=st.integers(0, 20 * UNIT))
    def alloc(self, nbytes: int) -> None:
        gaps = self.gaps()
        fitting = [size for _, size in gaps if size >= rounded(nbytes)]
        offset = self.allocator.alloc(nbytes)
        assert (offset is None) == (not fitting)
        if offset is not None:
            assert min(fitting) == next(size for start, size in gaps if start == offset), "not the best fit"
            self.live[offset] = rounded(nbytes)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.live)))
        assert self.allocator.free(offset) == self.live.pop(offset)

    @rule(offset=st.integers(0, 64 * UNIT))
    def free_of_nothing(self, offset: int) -> None:
        if offset not in self.live:
            with pytest.raises(KeyError):
                self.allocator.free(offset)

    @invariant()
    def free_extents_are_exactly_the_gaps(self) -> None:
        assert self.allocator.extents() == self.gaps(), "an overlap, a hole, or two extents that touch"
        assert self.allocator.used == sum(self.live.values())
        assert self.allocator.largest == max((size for _, size in self.gaps()), default=0)

    def gaps(self) -> list[tuple[int, int]]:
        gaps, at = [], 0
        for offset, size in [*sorted(self.live.items()), (self.allocator.capacity, 0)]:
            assert offset >= at, "two live blocks overlap"
            if offset > at:
                gaps.append((at, offset - at))
            at = offset + size
        return gaps


TestAllocations = Allocations.TestCase
TestAllocations.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_an_arena_that_was_full_of_anything_is_whole_again() -> None:
    random.seed(7)
    allocator = Allocator(4096 * UNIT)
    offsets = []
    while (offset := allocator.alloc(random.randrange(1, 40 * UNIT))) is not None:
        offsets.append(offset)
    random.shuffle(offsets)
    for offset in offsets:
        allocator.free(offset)
    assert allocator.extents() == [(0, 4096 * UNIT)]


@pytest.mark.parametrize("capacity", [0, -UNIT, UNIT + 1])
def test_odd_capacities_are_refused(capacity: int) -> None:
    with pytest.raises(ValueError):
        Allocator(capacity)
