"""The pure part of a tail against a model: whatever the live copy loses, the reader has the stored order, each once."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.reassembly import Reassembly


class Stream:
    """A stored log of some subjects, beside messages of others that take sequences too."""

    def __init__(self) -> None:
        self.log: list[tuple[int, int]] = []  # (sequence, sequence of the one before on the subject)
        self._seq = 0
        self._newest: dict[int, int] = {}

    def store(self, subject: int | None) -> None:
        self._seq += 1
        if subject is not None:
            self.log.append((self._seq, self._newest.get(subject, 0)))
            self._newest[subject] = self._seq

    def page(self, start: int, size: int) -> tuple[list[tuple[int, int]], bool]:
        found = [(seq, seq) for seq, _ in self.log if seq >= start]
        return found[:size], len(found) <= size


class World:
    """A reader of the stream. A live message arrives in stored order, again, late, or never."""

    def __init__(self, after: int, limit: int, page_size: int) -> None:
        self.stream = Stream()
        self.order: Reassembly[int] = Reassembly(after, limit)
        self.after = after
        self.page_size = page_size
        self.sent = 0
        self.answer: tuple[list[tuple[int, int]], bool] | None = None
        self.got: list[int] = []

        self.read()
        self.answered()

    def deliver(self, index: int) -> None:
        if 0 <= index < len(self.stream.log):
            seq, previous = self.stream.log[index]
            self.order.live(seq, previous, seq)

    def read(self) -> None:
        """A read is answered by the server now, and its answer arrives later."""
        if self.answer is None:
            self.answer = self.stream.page(self.order.begin(), self.page_size)

    def answered(self) -> None:
        if self.answer is not None:
            self.order.page(*self.answer)
            self.answer = None

    def failed(self) -> None:
        if self.answer is not None:
            self.order.failed()
            self.answer = None

    def take(self) -> None:
        while (seq := self.order.pop()) is not None:
            self.got.append(seq)

    def check(self) -> None:
        wanted = [seq for seq, _ in self.stream.log if seq > self.after]
        assert self.got == wanted[: len(self.got)]

    def end(self) -> None:
        """What a tail does after a while, whatever happened."""
        self.answered()
        self.order.lost()
        for _ in range(2 * len(self.stream.log) + 2):
            self.take()
            if not self.order.missing:
                break
            self.read()
            self.answered()
        self.take()
        assert self.got == [seq for seq, _ in self.stream.log if seq > self.after]


SHAPE = st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(1, 4))
FATE = st.sampled_from(["store other", "next", "next", "again", "lose"])
COMMON = st.sampled_from(["read", "answered", "failed", "take", "take one", "lost"])


@settings(max_examples=300, deadline=None)
@given(
    shape=SHAPE,
    script=st.lists(st.one_of(COMMON, st.sampled_from(["store", "store other"]), st.integers(0, 3)), max_size=40),
)
def test_one_subject_in_any_order(shape: tuple[int, int, int], script: list[str | int]) -> None:
    """Live messages in any order, repeated, or lost without a word: the chain of one subject shows each gap."""
    world = World(*shape)
    for step in script:
        match step:
            case "store":
                world.stream.store(0)
            case "store other":
                world.stream.store(None)
            case int():
                world.deliver(len(world.stream.log) - 1 - step)
            case _:
                perform(world, step)
        world.check()
    world.end()


@settings(max_examples=300, deadline=None)
@given(shape=SHAPE, script=st.lists(st.one_of(COMMON, st.integers(0, 2), FATE), max_size=60))
def test_several_subjects_in_stored_order(shape: tuple[int, int, int], script: list[str | int]) -> None:
    """Of several subjects live messages come in stored order, as one connection delivers them; losses are told."""
    world = World(*shape)
    for step in script:
        match step:
            case int():
                world.stream.store(step)
            case "store other":
                world.stream.store(None)
            case "next":
                world.deliver(world.sent)
                world.sent = min(world.sent + 1, len(world.stream.log))
            case "again":
                world.deliver(world.sent - 1) if world.sent else None
            case "lose":
                world.order.lost()
                world.sent = len(world.stream.log)
            case _:
                perform(world, step)
        world.check()
    world.end()


def perform(world: World, step: str) -> None:
    match step:
        case "read":
            world.read()
        case "answered":
            world.answered()
        case "failed":
            world.failed()
        case "take":
            world.take()
        case "take one":
            if (seq := world.order.pop()) is not None:
                world.got.append(seq)
        case "lost":
            world.order.lost()


def test_what_is_kept_is_bounded() -> None:
    order: Reassembly[int] = Reassembly(0, 3)
    order.begin()
    order.page([], True)
    for seq in range(1, 10):
        order.live(seq, seq - 1, seq)
    assert [order.pop() for _ in range(4)] == [1, 2, 3, None]
    assert order.missing


def test_overflow_while_reading_asks_for_another_read() -> None:
    order: Reassembly[int] = Reassembly(0, 2)
    order.begin()
    for seq in (1, 2, 3):
        order.live(seq, seq - 1, seq)
    order.page([], True)
    assert order.missing


def test_live_messages_need_no_read() -> None:
    order: Reassembly[int] = Reassembly(0, 3)
    order.begin()
    order.live(5, 0, 5)
    order.page([(2, 2)], True)
    order.live(7, 5, 7)
    assert [order.pop() for _ in range(4)] == [2, 5, 7, None]
    assert not order.missing
