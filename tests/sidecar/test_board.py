"""Pins in every order of accesses, with deaths between any two of them; seals; who may write what."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sidecar import board
from sidecar.allocator import UNIT
from sidecar.board import BYTES
from sidecar.messages import Tensor
from tests.sidecar.shared import SLOTS, Reader, World

TENSOR = Tensor("r", "n", 0, "a", "out", 0, "h", "e", 1, 8 * UNIT, 16, "float32", (2, 2))


class Orders(RuleBasedStateMachine):
    """Up to three readers, and so few slots that blocks meet in them."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    def reader(self, data: st.DataObject, can: Callable[[Reader], object]) -> Reader | None:
        readers = [reader for reader in self.world.readers if can(reader)]
        return data.draw(st.sampled_from(readers)) if readers else None

    @precondition(lambda self: self.world.daemon.done and len(self.world.readers) < 3)
    @rule()
    def connect(self) -> None:
        self.world.connect()

    @precondition(lambda self: self.world.daemon.done)
    @rule(commit=st.booleans())
    def grant(self, commit: bool) -> None:
        self.world.grant(commit=commit)

    @precondition(lambda self: self.world.daemon.done and self.world.unreleased)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.world.release(data.draw(st.sampled_from(self.world.unreleased)))

    @precondition(lambda self: self.world.daemon.done and self.world.dead)
    @rule()
    def bury(self) -> None:
        self.world.bury()

    @precondition(lambda self: self.world.daemon.done)
    @rule(data=st.data())
    def hear(self, data: st.DataObject) -> None:
        if reader := self.reader(data, lambda reader: reader.news):
            self.world.hear(reader)

    @precondition(lambda self: self.world.blocks)
    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        if reader := self.reader(data, lambda reader: reader.process.done):
            reader.pin(data.draw(st.sampled_from(self.world.blocks[-2 * SLOTS :])))

    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        if reader := self.reader(data, lambda reader: reader.process.done and reader.reads):
            reader.unpin(data.draw(st.sampled_from(reader.reads)))

    @rule(data=st.data())
    def step_reader(self, data: st.DataObject) -> None:
        if reader := self.reader(data, lambda reader: not reader.process.done):
            reader.process.step()

    @rule(data=st.data())
    def finish_reader(self, data: st.DataObject) -> None:
        if reader := self.reader(data, lambda reader: not reader.process.done):
            reader.process.finish()

    @rule(data=st.data())
    def drain_reader(self, data: st.DataObject) -> None:
        if reader := self.reader(data, lambda reader: reader.process.stores):
            reader.process.drain()

    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        if reader := self.reader(data, lambda reader: reader.page != [0] * SLOTS):
            self.world.die(reader)

    @precondition(lambda self: not self.world.daemon.done)
    @rule()
    def step_daemon(self) -> None:
        self.world.daemon.step()

    @precondition(lambda self: not self.world.daemon.done)
    @rule()
    def finish_daemon(self) -> None:
        self.world.daemon.finish()

    @precondition(lambda self: self.world.daemon.stores)
    @rule()
    def drain_daemon(self) -> None:
        self.world.daemon.drain()

    @invariant()
    def only_what_was_released_is_free(self) -> None:
        assert self.world.freed <= self.world.released

    def teardown(self) -> None:
        self.world.settle()
        assert self.world.freed == set(self.world.blocks), "memory that nobody reads is not given out again"
        assert all(reader.page == [0] * SLOTS for reader in self.world.readers)


TestOrders = Orders.TestCase
TestOrders.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


def orders(run: Callable[[Callable[[int], int]], None]) -> int:
    """Calls `run` once for each sequence of choices that it can make with `choose(among)`; how many there were."""
    runs, prefix = 0, [0]
    while True:
        made: list[tuple[int, int]] = []

        def choose(among: int, made: list[tuple[int, int]] = made, prefix: list[int] = prefix) -> int:
            choice = prefix[len(made)] if len(made) < len(prefix) else 0
            made.append((choice, among))
            return choice

        run(choose)
        runs += 1
        while made and made[-1][0] + 1 == made[-1][1]:
            made.pop()
        if not made:
            return runs
        prefix = [choice for choice, _ in made[:-1]] + [made[-1][0] + 1]


def race(world: World, choose: Callable[[int], int], *, giving_back: bool, deadly: bool) -> None:
    """A reader pins a block (or gives its pin back) while the daemon releases it. `deadly`: the reader is killed."""
    world.connect()
    world.daemon.finish()
    world.grant(commit=True)
    world.daemon.finish()
    (reader,), (block,) = world.readers, world.blocks
    reader.pin(block)
    if giving_back:
        reader.process.finish()
        reader.unpin(block)
    world.release(block)
    while True:
        moves = [
            move
            for process in (reader.process, world.daemon)
            for move, possible in ((process.step, not process.done), (process.drain, process.stores))
            if possible
        ]
        if not moves:
            break
        choice = choose(len(moves) + (deadly and not world.dead))
        if choice < len(moves):
            moves[choice]()
        else:
            world.die(reader)
    world.settle()
    assert world.freed == {block}, "memory that nobody reads is not given out again"


@pytest.mark.parametrize("deadly", [False, True])
@pytest.mark.parametrize("giving_back", [False, True])
def test_in_every_order_a_reader_has_the_memory_or_the_daemon_gives_it_out(giving_back: bool, deadly: bool) -> None:
    assert orders(lambda choose: race(World(), choose, giving_back=giving_back, deadly=deadly)) > 50


@pytest.fixture
def world() -> World:
    """One reader, and as many blocks as are slots, and one more, which meets the first."""
    world = World()
    world.connect()
    world.daemon.finish()
    for _ in range(SLOTS + 1):
        world.grant(commit=True)
        world.daemon.finish()
    return world


def pin(reader: Reader, block: int) -> bool:
    before = len(reader.reads)
    reader.pin(block)
    reader.process.finish()
    return len(reader.reads) > before


def release(world: World, block: int) -> None:
    world.release(block)
    world.daemon.finish()


def test_news_of_a_pin_that_failed_say_nothing_of_one_that_holds(world: World) -> None:
    (reader,), block = world.readers, world.blocks[-1]
    assert pin(reader, block)
    release(world, block)
    assert not pin(reader, block)
    world.hear(reader)
    world.daemon.finish()
    assert world.freed == set()
    assert reader.page[block % SLOTS] == block
    world.settle()
    assert world.freed == set(world.blocks)


def test_of_two_blocks_that_meet_in_a_slot_the_younger_can_be_pinned(world: World) -> None:
    (reader,), elder, younger = world.readers, world.blocks[0], world.blocks[-1]
    assert not pin(reader, elder)
    assert pin(reader, younger)
    release(world, elder)
    assert pin(reader, younger)


def test_a_pin_stays_when_a_younger_block_takes_the_slot(world: World) -> None:
    (reader,), elder = world.readers, world.blocks[1]
    assert pin(reader, elder)
    world.grant(commit=True)
    world.daemon.finish()
    younger = world.blocks[-1]
    assert younger % SLOTS == elder % SLOTS
    assert not pin(reader, younger)
    release(world, elder)
    assert world.freed == set()
    reader.unpin(elder)
    reader.process.finish()
    while reader.news:
        world.hear(reader)
        world.daemon.finish()
    assert world.freed == {elder}
    assert pin(reader, younger)


def test_pins_of_the_dead_hold_nothing(world: World) -> None:
    (reader,), before, after = world.readers, world.blocks[1], world.blocks[2]
    assert pin(reader, before)
    assert pin(reader, after)
    release(world, before)
    world.die(reader)
    world.bury()
    world.daemon.finish()
    assert world.freed == {before}
    release(world, after)
    assert world.freed == {before, after}


@pytest.mark.parametrize(
    ("giving_back", "wrong"), [(False, "under a reader|to a reader|got memory"), (True, "is not given out again")]
)
def test_without_fences_each_would_miss_the_other(giving_back: bool, wrong: str) -> None:
    """So the memory of these tests reorders as that of x86 does."""
    with pytest.raises(AssertionError, match=wrong):
        orders(lambda choose: race(World(fences=False), choose, giving_back=giving_back, deadly=False))


def seal(words: board.Words, block: int, tensor: Tensor) -> None:
    board.seal(words, tensor.offset, block, board.digest(block, tensor))


@pytest.mark.parametrize("change", [{"gen": 1}, {"attempt": "b"}, {"epoch": "f"}, {"nbytes": 15}, {"shape": (4,)}])
def test_a_seal_names_a_ref_in_every_field(change: dict[str, object]) -> None:
    words = memoryview(bytearray(16 * 16)).cast("Q")
    assert board.sealed(words, TENSOR) == 0
    seal(words, 7, TENSOR)
    assert board.sealed(words, TENSOR) == 7
    assert board.sealed(words, msgspec.structs.replace(TENSOR, **change)) == 0


def test_a_seal_that_is_half_written_names_nothing() -> None:
    words = memoryview(bytearray(16 * 16)).cast("Q")
    seal(words, 7, TENSOR)
    old = words.tolist()
    seal(words, 8, msgspec.structs.replace(TENSOR, attempt="b"))
    new = words.tolist()
    for mixed in ([old[16], new[17]], [new[16], old[17]]):
        words[16], words[17] = mixed
        assert board.sealed(words, TENSOR) == board.sealed(words, msgspec.structs.replace(TENSOR, attempt="b")) == 0


@pytest.mark.parametrize("offset", [-UNIT, 16 * UNIT, 1 << 62, "nowhere", None, 1.5])
def test_a_place_outside_of_the_arena_has_no_seal(offset: object) -> None:
    words = memoryview(bytearray(16 * 16)).cast("Q")
    assert board.sealed(words, msgspec.structs.replace(TENSOR, offset=offset)) == 0


def test_only_the_daemon_writes_its_board() -> None:
    words, descriptor = board.make_board()
    again = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)
    for one in (descriptor, again):
        with pytest.raises(PermissionError):
            mmap.mmap(one, BYTES)
    os.close(again)
    live = board.words_of(descriptor, writable=False)
    words[5] = 77
    assert live[5] == 77
    with pytest.raises(TypeError):
        live[5] = 1


def test_a_reader_cannot_take_its_page_from_under_the_daemon() -> None:
    words, descriptor = board.make_page()
    for size in (0, 2 * BYTES):
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, size)
    page = board.words_of(descriptor, writable=True)
    page[5] = 77
    assert words[5] == 77
