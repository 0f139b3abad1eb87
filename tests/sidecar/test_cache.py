"""The cache of what was made before: against a model, and over a real sidecar with processes that die."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cornstalk.messages import Ref
from sidecar.blocks import Book, Place
from sidecar.board import Board
from sidecar.cache import REQUEST, Answer, Cache, Turn
from sidecar.client import SidecarClient
from sidecar.errors import Full, Gone, Timeout
from sidecar.messages import Owner, Tensor
from tests.sidecar.actors import Actor, Refused, checksum, pattern
from tests.sidecar.conftest import MIB, OWNER, Connect, Sidecar, running
from tests.waiting import eventually

SIZE = 4096
LIMIT = 3 * SIZE
KEYS = st.sampled_from(["k1", "k2", "k3", "k4", "k5"])
PEERS = st.integers(1, 3)


class Caching(RuleBasedStateMachine):
    """Each key is unknown, in flight by one who owes it, or kept; who waits is answered once, by a result or a turn."""

    def __init__(self) -> None:
        super().__init__()
        self.book = Book("h", "e", Board([0] * 64))
        self.cache = Cache(self.book, LIMIT)
        self.numbers = itertools.count(1)
        self.now = 1000.0
        self.peer_of = {1: 1, 2: 2, 3: 3}
        self.connections = itertools.count(4)
        self.turns: dict[str, int] = {}  # key -> who makes it
        self.waiting: dict[str, list[Turn]] = {}
        self.kept: dict[str, tuple[bytes, int]] = {}  # payload and bytes; the one asked for last comes last
        self.used: set[int] = set()  # offsets
        self.of_requests: dict[str, int] = {}  # request -> offset of its tensor

    def settle(self, answers: list[Answer]) -> None:
        for turn, key, found in answers:
            if found is None:
                assert key not in self.kept
                assert key not in self.turns
                self.turns[key] = turn.peer
            else:
                assert found.payload == self.kept[key][0]
                self.touched(key)
                assert found.tensors[0].request == turn.owner.request
                self.of_requests[turn.owner.request] = found.tensors[0].offset
        self.took()

    def took(self) -> None:
        for place in self.cache.freed():
            self.used.discard(place.offset)

    def touched(self, key: str) -> None:
        self.kept[key] = self.kept.pop(key)

    @rule(slot=PEERS, key=KEYS)
    def ask(self, slot: int, key: str) -> None:
        number = next(self.numbers)
        turn = Turn(self.peer_of[slot], number, Owner(f"r{number}", "n", 0, "a"), self.now + 50)
        answer = self.cache.ask(turn, key, self.now)
        if key in self.kept or key not in self.turns:
            assert answer is not None
            assert answer.turn == turn
            self.settle([answer])
        else:
            assert answer is None
            self.waiting.setdefault(key, []).append(turn)

    @precondition(lambda self: self.turns)
    @rule(data=st.data(), blocks=st.integers(1, 2), stranger=st.booleans())
    def keep(self, data: st.DataObject, blocks: int, stranger: bool) -> None:
        """By whose turn it is, or by one whose turn it was before it was given up as hung."""
        key = data.draw(st.sampled_from(sorted(self.turns)))
        peer = self.peer_of[1] if stranger else self.turns[key]
        number = next(self.numbers)
        tensors = [self.made(peer, f"r{number}", index) for index in range(blocks)]
        payload = str(number).encode()
        answers = self.cache.keep(key, payload, tuple(tensors), self.now)
        del self.turns[key]
        self.kept[key] = payload, blocks * SIZE
        waiting = self.waiting.pop(key, [])
        assert [answer.turn for answer in answers] == waiting
        self.settle(answers)
        while self.sizes() > LIMIT:
            self.kept.pop(next(iter(self.kept)))

    def made(self, peer: int, request: str, index: int) -> Tensor:
        offset = next(n for n in itertools.count(0, SIZE) if n not in self.used)
        self.used.add(offset)
        number = self.book.grant(peer, Place(1, offset), SIZE)
        tensor = Tensor(request, "n", 0, "a", f"o{index}", 0, "h", "e", 1, offset, SIZE, "uint8", (SIZE,))
        self.book.commit(peer, number, tensor, expires=self.now + 50, hold=False, now=self.now)
        return tensor

    def sizes(self) -> int:
        return sum(nbytes for _, nbytes in self.kept.values())

    @precondition(lambda self: self.turns)
    @rule(data=st.data())
    def pass_on(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.turns)))
        assert self.cache.pass_on(99, key) == []
        self.handed_on(key, self.cache.pass_on(self.turns.pop(key), key))

    def handed_on(self, key: str, answers: list[Answer]) -> None:
        waiting = self.waiting.get(key, [])
        assert [(answer.turn, answer.found) for answer in answers] == [(turn, None) for turn in waiting[:1]]
        del waiting[:1]
        self.settle(answers)

    @rule(slot=PEERS)
    def connection_dies(self, slot: int) -> None:
        peer, self.peer_of[slot] = self.peer_of[slot], next(self.connections)
        self.waiting = {key: [t for t in turns if t.peer != peer] for key, turns in self.waiting.items()}
        lost = [key for key, maker in self.turns.items() if maker == peer]
        answers = self.cache.close(peer)
        for place in self.book.close(peer):
            self.used.discard(place.offset)
        for key in lost:
            del self.turns[key]
            self.handed_on(key, [answer for answer in answers if answer.key == key])

    @precondition(lambda self: any(self.waiting.values()))
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        turn = data.draw(st.sampled_from([turn for turns in self.waiting.values() for turn in turns]))
        assert self.cache.withdraw(turn.peer, turn.request)
        assert not self.cache.withdraw(turn.peer, turn.request)
        self.waiting = {key: [t for t in turns if t != turn] for key, turns in self.waiting.items()}

    @precondition(lambda self: self.kept)
    @rule()
    def evict(self) -> None:
        assert not self.cache.evict({2})
        assert self.cache.evict({1, 2})
        self.kept.pop(next(iter(self.kept)))
        self.took()

    @precondition(lambda self: self.of_requests)
    @rule(data=st.data())
    def request_ends(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted(self.of_requests)))
        del self.of_requests[request]
        for place in self.book.release(request):
            self.used.discard(place.offset)

    @invariant()
    def what_is_kept_is_what_the_model_keeps(self) -> None:
        assert len(self.cache) == len(self.kept)
        assert self.cache.nbytes == self.sizes() <= LIMIT

    @invariant()
    def what_no_request_owns_is_idle(self) -> None:
        owned = {
            tensor.offset
            for request, numbers in self.book._of_request.items()
            if request != REQUEST
            for tensor in self.of(numbers)
        }
        cached = {tensor.offset for tensor in self.of(self.book._of_request.get(REQUEST, set()))}
        assert self.cache.idle_bytes == SIZE * len(cached - owned)

    def of(self, numbers: set[int]) -> list[Tensor]:
        return [tensor for number in numbers if (tensor := self.book._blocks[number].tensor) is not None]

    @invariant()
    def what_a_request_found_is_its_own(self) -> None:
        assert set(self.of_requests.values()) <= self.used


TestCaching = Caching.TestCase
TestCaching.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


@pytest.fixture(scope="module")
def sidecar(directory: Path) -> Iterator[Sidecar]:
    """One for all tests of this module, each with keys of its own."""
    yield from running(directory)


def soon() -> float:
    return time.time() + 60


def owner(request: str) -> Owner:
    return Owner(request, "n", 0, "a")


async def made(client: SidecarClient, key: str, seed: int, nbytes: int = 1000, request: str = "r") -> Ref:
    assert await client.recall(key, owner(request), expires=soon(), wait=2.0) is None
    ref = await client.put_copy(owner(request), "out", 0, pattern(seed, nbytes), expires=soon(), wait=2.0)
    await client.remember(key, b"said", [ref])
    return ref


async def test_what_one_made_another_finds_as_its_own(connect: Connect, settled: Any) -> None:
    maker, other = await connect(), await connect(quota=0)
    await made(maker, "own", 1)
    found = await other.recall("own", owner("another"), expires=soon(), wait=2.0)
    assert found is not None
    assert (found.payload, found.refs[0].request) == (b"said", "another")
    await maker.drop(OWNER)
    with await other.get(found.refs[0]) as lease:
        assert np.array_equal(lease.array, pattern(1, 1000))
    await other.drop(owner("another"))
    with pytest.raises(Gone):
        await other.get(found.refs[0])
    again = await other.recall("own", owner("later"), expires=soon(), wait=2.0)
    assert again is not None, "the cache owns it too"
    await other.drop(owner("later"))


async def test_one_makes_it_and_the_others_wait(connect: Connect) -> None:
    clients = [await connect() for _ in range(4)]
    asked = [
        asyncio.create_task(client.recall("flight", owner(f"f{n}"), expires=soon(), wait=10.0))
        for n, client in enumerate(clients)
    ]
    (first,) = (await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED))[0]
    assert first.result() is None
    maker = clients[asked.index(first)]
    ref = await maker.put_copy(OWNER, "out", 0, pattern(2, 1000), expires=soon(), wait=2.0)
    await maker.remember("flight", b"said", [ref])
    found = [await task for task in asked if task is not first]
    assert all(one is not None and one.payload == b"said" for one in found)
    for n, client in enumerate(clients):
        await client.drop(owner(f"f{n}"))


async def test_the_turn_of_a_killed_process_goes_to_the_next(connect: Connect, actor: Callable[..., Actor]) -> None:
    maker, client = actor(), await connect()
    assert await maker.call("recall", "killed") is None
    waiting = asyncio.create_task(client.recall("killed", OWNER, expires=soon(), wait=10.0))
    await asyncio.sleep(0)
    maker.kill()
    assert await waiting is None
    await client.pass_on("killed")


async def test_who_passes_on_and_who_stops_waiting_hold_nobody_up(connect: Connect) -> None:
    first, second, third = [await connect(quota=0) for _ in range(3)]
    assert await first.recall("passed", OWNER, expires=soon(), wait=2.0) is None
    with pytest.raises(Timeout):
        await second.recall("passed", OWNER, expires=soon(), wait=0.05)
    gone = asyncio.create_task(second.recall("passed", OWNER, expires=soon(), wait=10.0))
    waiting = asyncio.create_task(third.recall("passed", OWNER, expires=soon(), wait=10.0))
    await first.stats()
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    await first.pass_on("passed")
    assert await waiting is None


async def test_a_turn_that_comes_as_its_client_stops_waiting_is_passed_on(connect: Connect) -> None:
    first, second = await connect(quota=0), await connect(quota=0)
    assert await first.recall("late", OWNER, expires=soon(), wait=2.0) is None
    gone = asyncio.create_task(second.recall("late", OWNER, expires=soon(), wait=10.0))
    await second.stats()
    await first.pass_on("late")
    await first.stats()
    gone.cancel()
    (answer,) = await asyncio.gather(gone, return_exceptions=True)
    if answer is None:  # the turn came first
        await second.pass_on("late")

    async def mine() -> bool:
        try:
            return await first.recall("late", OWNER, expires=soon(), wait=0.05) is None
        except Timeout:
            return False

    await eventually(mine, within=5.0)


async def test_the_cache_gives_way_to_work_but_never_under_a_reader(connect: Connect, settled: Any) -> None:
    client, reader = await connect(quota=8 * MIB), await connect(quota=0)
    for n in range(3):
        await made(client, f"way{n}", n, 2 * MIB)
    found = await reader.recall("way1", owner("reads"), expires=soon(), wait=2.0)
    assert found is not None
    lease = await reader.get(found.refs[0])
    await client.drop(owner("r"))
    await reader.drop(owner("reads"))
    with pytest.raises(Full):
        await client.put_copy(OWNER, "out", 9, np.ones(7 * MIB, np.uint8), expires=soon(), wait=0.2)
    await client.put_copy(OWNER, "out", 9, np.ones(3 * MIB, np.uint8), expires=soon(), wait=2.0)
    assert np.array_equal(lease.array, pattern(1, 2 * MIB)), "memory that is read was given out again"
    lease.release()


async def test_a_full_cache_forgets_what_was_not_asked_for_the_longest(connect: Connect, settled: Any) -> None:
    client = await connect(quota=24 * MIB)
    for n in range(10):  # 20 MiB; a quarter of 64 is kept
        await made(client, f"old{n}", n, 2 * MIB, request="old")
        await client.recall("old0", owner("old"), expires=soon(), wait=2.0)
    stats = await client.stats()
    assert stats.cached_bytes <= 16 * MIB
    await client.drop(owner("old"))
    assert await client.recall("old0", owner("old"), expires=soon(), wait=2.0) is not None
    assert await client.recall("old1", owner("old"), expires=soon(), wait=2.0) is None
    await client.pass_on("old1")
    await client.drop(owner("old"))


async def test_what_does_not_fit_a_datagram_is_not_kept_and_the_next_makes_it(connect: Connect) -> None:
    client, other = await connect(quota=0), await connect(quota=0)
    assert await client.recall("long", OWNER, expires=soon(), wait=2.0) is None
    await client.remember("long", bytes(20_000), [])
    assert await other.recall("long", OWNER, expires=soon(), wait=2.0) is None
    await other.pass_on("long")


async def test_tensors_that_went_before_they_were_kept_are_made_again(connect: Connect) -> None:
    client, other = await connect(), await connect(quota=0)
    assert await client.recall("went", OWNER, expires=soon(), wait=2.0) is None
    ref = await client.put_copy(OWNER, "out", 0, pattern(1, 1000), expires=soon(), wait=2.0)
    waiting = asyncio.create_task(other.recall("went", OWNER, expires=soon(), wait=10.0))
    await other.stats()
    await client.drop(OWNER)
    await client.remember("went", b"", [ref])
    assert await waiting is None
    await other.pass_on("went")


async def test_bad_requests_are_refused(connect: Connect) -> None:
    from sidecar.errors import Denied

    client = await connect(quota=0)
    for key, expires, wait in (("", soon(), 1.0), ("k" * 200, soon(), 1.0), ("k", -1.0, 1.0), ("k", soon(), -1.0)):
        with pytest.raises(Denied):
            await client.recall(key, OWNER, expires=expires, wait=wait)


async def test_kills_at_random_leave_nothing_and_answer_right(
    connect: Connect, actor: Callable[..., Actor], settled: Any
) -> None:
    """Three processes make and find; one is killed each round, whatever it does."""
    client, rng = await connect(quota=0), np.random.default_rng(20261130)
    for round_ in range(8):
        actors = [actor() for _ in range(3)]
        keys = [f"random{round_}.{n}" for n in range(3)]
        for one in actors:
            one.begin("find_or_make", keys, int(rng.integers(0, 3)))
        await asyncio.to_thread(time.sleep, float(rng.uniform(0, 0.03)))
        actors[0].kill()
        for one in actors[1:]:
            try:
                assert await one.answer() == [checksum(pattern(int(key[-1]), 5000)) for key in keys]
            except Refused as error:
                raise AssertionError("the death of one hurt another") from error
        for one in actors[1:]:
            one.kill()
    await settled(client, leases=0, connections=1)


async def test_what_is_found_as_its_client_stops_waiting_is_given_back(connect: Connect, settled: Any) -> None:
    maker, other = await connect(), await connect(quota=0)
    await made(maker, "unwanted", 3)
    before = (await maker.stats()).blocks
    gone = asyncio.create_task(other.recall("unwanted", owner("gone"), expires=soon(), wait=10.0))
    await asyncio.sleep(0)
    gone.cancel()
    (answer,) = await asyncio.gather(gone, return_exceptions=True)
    if not isinstance(answer, BaseException):  # it came first
        await other.drop(owner("gone"))
    await settled(maker, blocks=before)
