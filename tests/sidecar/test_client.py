"""Put and get within one host: views without copies, room in order of arrival, typed refusals."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cornstalk.messages import Ref, decode_value, encode
from sidecar.errors import Denied, Full, Gone, NodeLost, SidecarDown, SidecarError, TooBig
from sidecar.messages import Owner
from tests.sidecar.actors import pattern
from tests.sidecar.conftest import MIB, OWNER, Connect, Sidecar, running
from tests.waiting import eventually


def soon() -> float:
    return time.time() + 60


@pytest.fixture(scope="module")
def sidecar(directory: Path) -> Iterator[Sidecar]:
    """One for all tests of this module, which leave nothing in it."""
    yield from running(directory)


async def test_what_was_copied_in_is_read_by_another_client(connect: Connect) -> None:
    producer, reader = await connect(), await connect(quota=0)
    data = pattern(1, 3 * MIB).view(np.int32).reshape(3, -1)
    ref = await producer.put_copy(OWNER, "states", 0, data, expires=soon(), wait=2.0)
    assert (ref.request, ref.node, ref.gen, ref.attempt, ref.output, ref.index) == ("r", "n", 0, "a", "states", 0)
    ref = decode_value(encode(ref))  # as it comes out of the log
    with await reader.get(ref) as lease:
        assert np.array_equal(lease.array, data)
        assert lease.array.shape == data.shape


async def test_a_view_raises_on_writing_and_cannot_be_made_writable(connect: Connect) -> None:
    producer = await connect()
    ref = await producer.put_copy(OWNER, "out", 0, np.ones(4), expires=soon(), wait=2.0)
    lease = await producer.get(ref)
    with pytest.raises(ValueError, match="read-only"):
        lease.array[0] = 2
    with pytest.raises(ValueError, match="WRITEABLE"):
        lease.array.flags.writeable = True
    lease.release()
    with pytest.raises(Gone):
        _ = lease.array


async def test_direct_writes_by_numpy_and_torch_are_in_place(connect: Connect) -> None:
    producer, reader = await connect(), await connect(quota=0)
    async with producer.put(OWNER, "out", 0, (2, 3), "float32", expires=soon(), wait=2.0) as block:
        block.array[0] = 1
        block.torch()[1] = 2
        with pytest.raises(SidecarError):
            _ = block.ref
    with await reader.get(block.ref) as lease:
        assert lease.array.tolist() == [[1, 1, 1], [2, 2, 2]]
        assert lease.torch().data_ptr() == lease.array.__array_interface__["data"][0]
    with pytest.raises(Gone):
        _ = block.array


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64, torch.bool])
async def test_torch_tensors_come_back_as_they_were(connect: Connect, dtype: torch.dtype) -> None:
    producer, reader = await connect(), await connect(quota=0)
    tensor = (torch.arange(24).reshape(4, 6) % 5).to(dtype).t()  # not contiguous
    ref = await producer.put_copy(OWNER, "out", 0, tensor, expires=soon(), wait=2.0)
    with await reader.get(ref) as lease:
        view = lease.torch()
        assert view.dtype == dtype
        assert torch.equal(view, tensor)
        assert view.data_ptr() == lease.array.__array_interface__["data"][0], "a copy"
        if dtype == torch.bfloat16:
            assert (ref.dtype, lease.array.dtype) == ("bfloat16", np.uint16)


@pytest.mark.parametrize("shape", [(), (0,), (0, 3)])
async def test_scalars_and_empty_tensors(connect: Connect, shape: tuple[int, ...]) -> None:
    client = await connect()
    ref = await client.put_copy(OWNER, "out", 0, np.full(shape, 7.0), expires=soon(), wait=2.0)
    with await client.get(ref) as lease:
        assert lease.array.shape == shape
        assert tuple(lease.torch().shape) == shape
        assert (lease.array == 7).all()


@pytest.mark.parametrize("nbytes", [4 * MIB + 4, 8 * MIB, 9 * MIB + 8, 33 * MIB])
async def test_a_large_copy_is_whole_whatever_its_tensor(connect: Connect, settled: Any, nbytes: int) -> None:
    client, reader = await connect(quota=40 * MIB), await connect(quota=0)
    plain = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    flat = torch.from_numpy(plain)
    sources: list[Any] = [
        plain, plain.view(np.float16), plain[::-1], plain.reshape(2, -1).T, flat, flat.view(torch.bfloat16),
        flat.view(torch.bfloat16).reshape(2, -1).t(),
    ]  # fmt: skip
    for index, source in enumerate(sources):
        ref = await client.put_copy(OWNER, "out", index, source, expires=soon(), wait=2.0)
        with await reader.get(ref) as lease:
            if isinstance(source, torch.Tensor):
                bits = torch.uint8 if source.dtype == torch.uint8 else torch.int16  # a NaN is not equal to itself
                assert torch.equal(lease.torch().view(bits), source.view(bits))
            else:
                assert lease.array.tobytes() == source.tobytes()
        await settled(client, leases=0)  # no thread holds a view of it
        await client.drop(OWNER)


async def test_a_large_copy_that_is_cancelled_gives_its_block_back(connect: Connect, settled: Any) -> None:
    client = await connect(quota=64 * MIB)
    data = np.ones(48 * MIB, np.uint8)
    for _ in range(10):
        putting = asyncio.create_task(client.put_copy(OWNER, "out", 0, data, expires=soon(), wait=2.0))
        await asyncio.sleep(0)
        await client.stats()
        putting.cancel()
        await asyncio.gather(putting, return_exceptions=True)
        await client.drop(OWNER)
        await settled(client, blocks=0, leases=0)


async def test_a_large_copy_leaves_the_event_loop_alone(connect: Connect) -> None:
    client = await connect(quota=36 * MIB)
    data = np.ones(32 * MIB, np.uint8)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    await client.put_copy(OWNER, "out", 0, data, expires=soon(), wait=2.0)
    await client.drop(OWNER)
    counting = asyncio.create_task(count())
    for index in range(10):  # on the loop, each would let it turn once or twice
        await client.put_copy(OWNER, "out", index, data, expires=soon(), wait=2.0)
        await client.drop(OWNER)
    counting.cancel()
    assert turns > 100


async def test_an_exception_gives_the_block_back(connect: Connect, settled: Any) -> None:
    client = await connect()
    with pytest.raises(RuntimeError, match="engine"):
        async with client.put(OWNER, "out", 0, 100, "uint8", expires=soon(), wait=2.0):
            raise RuntimeError("engine")
    await settled(client, granted_bytes=0, blocks=0)


async def test_a_block_that_an_engine_still_writes_is_not_given_out_again(connect: Connect, settled: Any) -> None:
    client = await connect()
    kept = []

    async def fail() -> None:
        async with client.put(OWNER, "out", 0, 100, "uint8", expires=soon(), wait=2.0) as block:
            kept.append(block.array[3:])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await fail()
    gc.collect()
    assert (await client.stats()).granted_bytes == 4096
    kept.clear()
    await settled(client, granted_bytes=0)


async def test_a_view_kept_after_commit_or_release_keeps_the_memory(connect: Connect, settled: Any) -> None:
    client = await connect()
    async with client.put(OWNER, "out", 0, 100, "uint8", expires=soon(), wait=2.0) as block:
        written = block.array
    lease = await client.get(block.ref)
    read = lease.torch()[:10]
    lease.release()
    await client.drop(OWNER)
    assert (await client.stats()).leases == 2
    del written
    await settled(client, leases=1, blocks=1)
    del read
    await settled(client, leases=0, blocks=0, committed_bytes=0)


async def test_a_forgotten_lease_ends_with_its_views(connect: Connect, settled: Any) -> None:
    client = await connect()
    ref = await client.put_copy(OWNER, "out", 0, np.ones(4), expires=soon(), wait=2.0)
    view = (await client.get(ref)).array
    assert (await client.stats()).leases == 1
    assert view.sum() == 4
    del view
    await settled(client, leases=0, blocks=1)


async def test_any_number_of_readers_and_again(connect: Connect, settled: Any) -> None:
    client, *readers = [await connect(quota=MIB if n == 0 else 0) for n in range(5)]
    ref = await client.put_copy(OWNER, "out", 0, np.arange(9), expires=soon(), wait=2.0)
    leases = [await reader.get(ref) for reader in readers * 2]
    assert all(lease.array.sum() == 36 for lease in leases)
    assert (await client.stats()).leases == 8
    for lease in leases:
        lease.release()
    await settled(client, leases=0, blocks=1)
    (await client.get(ref)).release()


async def test_an_expired_block_is_gone(connect: Connect, settled: Any) -> None:
    client = await connect()
    ref = await client.put_copy(OWNER, "out", 0, np.ones(4), expires=time.time() + 0.2, wait=2.0)
    stats = await settled(client, blocks=0, committed_bytes=0)
    assert stats.expired == 1
    with pytest.raises(Gone):
        await client.get(ref)


async def test_full_comes_at_the_deadline(connect: Connect) -> None:
    client = await connect(quota=4 * MIB)
    await client.put_copy(OWNER, "out", 0, np.ones(3 * MIB, np.uint8), expires=soon(), wait=2.0)
    started = time.monotonic()
    with pytest.raises(Full):
        await client.put_copy(OWNER, "out", 1, np.ones(2 * MIB, np.uint8), expires=soon(), wait=0.3)
    assert 0.3 <= time.monotonic() - started < 0.5
    await client.put_copy(OWNER, "out", 2, np.ones(MIB, np.uint8), expires=soon(), wait=0.0)


async def test_what_can_never_fit_is_refused_at_once(connect: Connect) -> None:
    client = await connect(quota=4 * MIB)
    with pytest.raises(TooBig):
        await client.put_copy(OWNER, "out", 0, np.ones(5 * MIB, np.uint8), expires=soon(), wait=5.0)


async def test_room_is_given_in_order_of_arrival(connect: Connect) -> None:
    client = await connect(quota=4 * MIB)
    await client.put_copy(OWNER, "out", 0, np.ones(3 * MIB, np.uint8), expires=soon(), wait=2.0)
    served: list[int] = []

    async def put(index: int, nbytes: int) -> None:
        owner = Owner("r", "n", 0, f"a{index}")
        await client.put_copy(owner, "out", index, np.ones(nbytes, np.uint8), expires=soon(), wait=5.0)
        served.append(index)
        await client.drop(owner)

    waiting = [asyncio.create_task(put(1, 4 * MIB))]
    await eventually(lambda: _waiters(client, 1))
    waiting += [asyncio.create_task(put(n, MIB)) for n in (2, 3)]  # would fit at once: must not overtake
    await eventually(lambda: _waiters(client, 3))
    assert served == []
    await client.drop(OWNER)
    await asyncio.gather(*waiting)
    assert served[0] == 1


async def _waiters(client: Any, number: int) -> bool:
    return (await client.stats()).waiters == number


async def test_a_waiter_that_is_cancelled_leaves_the_line(connect: Connect, settled: Any) -> None:
    client = await connect(quota=4 * MIB)
    await client.put_copy(OWNER, "out", 0, np.ones(3 * MIB, np.uint8), expires=soon(), wait=2.0)
    work = client.put_copy(OWNER, "out", 1, np.ones(2 * MIB, np.uint8), expires=soon(), wait=30.0)
    waiting = asyncio.create_task(work)
    await settled(client, waiters=1)
    waiting.cancel()
    await settled(client, waiters=0, granted_bytes=0)


async def test_an_arena_grows_and_what_was_only_for_a_peak_goes_back(connect: Connect, settled: Any) -> None:
    peak = await connect("peak", quota=8 * MIB, limit=64 * MIB)
    for index in range(4):
        await peak.put_copy(OWNER, "out", index, np.ones(10 * MIB, np.uint8), expires=soon(), wait=2.0)
    assert (await peak.stats()).arena_bytes == 48 * MIB
    await peak.drop(OWNER)
    await settled(peak, blocks=0, committed_bytes=0)
    other = await connect("other", quota=0, limit=64 * MIB)
    data = pattern(3, 50 * MIB)
    ref = await other.put_copy(OWNER, "out", 9, data, expires=soon(), wait=2.0)
    with await peak.get(ref) as lease:
        assert np.array_equal(lease.array, data)
    del lease
    assert (await peak.stats()).arena_bytes <= 64 * MIB
    await peak.put_copy(OWNER, "out", 5, np.ones(MIB, np.uint8), expires=soon(), wait=2.0)


async def test_repeated_sizes_are_granted_ahead_and_given_back_when_short(connect: Connect) -> None:
    client = await connect(quota=8 * MIB)
    small = np.ones(256 << 10, np.uint8)
    for index in range(2):
        await client.put_copy(OWNER, "out", index, small, expires=soon(), wait=2.0)
    assert (await client.stats()).granted_bytes == 3 * small.nbytes
    for index in range(3):
        await client.put_copy(OWNER, "out", 2 + index, small, expires=soon(), wait=2.0)
    assert (await client.stats()).granted_bytes == 0
    await client.put_copy(OWNER, "out", 5, small, expires=soon(), wait=2.0)
    await client.drop(OWNER)
    await client.put_copy(OWNER, "out", 6, np.ones(8 * MIB, np.uint8), expires=soon(), wait=2.0)


async def test_a_large_block_that_came_free_is_there_for_the_next_put_of_its_size(connect: Connect) -> None:
    client = await connect(quota=16 * MIB)
    large = np.ones(4 * MIB, np.uint8)
    for index in range(2):  # from the second on the size is known to come again
        await client.put_copy(OWNER, "out", index, large, expires=soon(), wait=2.0)
    await client.drop(OWNER)
    assert (await client.stats()).granted_bytes == 2 * large.nbytes, "half of its memory may wait for large tensors"
    async with asyncio.timeout(10):
        for index in range(8):  # more than there is room for, without an end of a lease or a round trip between
            ref = await client.put_copy(OWNER, "out", index, large, expires=soon(), wait=0.0)
            assert (await client.stats()).granted_bytes == large.nbytes
            await client.drop(OWNER)
            with pytest.raises(Gone):
                await client.get(ref)
    await client.put_copy(OWNER, "out", 9, np.ones(16 * MIB, np.uint8), expires=soon(), wait=2.0)
    await client.drop(OWNER)


async def test_a_block_that_came_free_goes_to_who_waits_for_room(connect: Connect, settled: Any) -> None:
    client = await connect(quota=8 * MIB)
    large, larger = np.ones(4 * MIB, np.uint8), np.ones(8 * MIB, np.uint8)
    for index in range(2):
        await client.put_copy(OWNER, "out", index, large, expires=soon(), wait=2.0)
    waiting = asyncio.create_task(client.put_copy(OWNER, "out", 2, larger, expires=soon(), wait=10.0))
    await settled(client, waiters=1)
    await client.drop(OWNER)
    await waiting
    await settled(client, granted_bytes=0, committed_bytes=8 * MIB)
    await client.drop(OWNER)


@pytest.mark.parametrize("change", [{"output": "other"}, {"shape": (2,)}, {"offset": 4096}, {"arena": 99}])
async def test_a_ref_that_is_not_exactly_right_gets_no_data(connect: Connect, change: dict[str, Any]) -> None:
    client = await connect()
    ref = await client.put_copy(OWNER, "out", 0, np.ones(4), expires=soon(), wait=2.0)
    with pytest.raises(Gone):
        await client.get(ref.replace(**change))


async def test_a_tensor_of_another_host_is_out_of_reach(connect: Connect) -> None:
    client = await connect()
    ref = await client.put_copy(OWNER, "out", 0, np.ones(4), expires=soon(), wait=2.0)
    with pytest.raises(NodeLost):
        await client.get(ref.replace(host="elsewhere"))


async def test_bad_refs_and_dtypes_are_denied(connect: Connect) -> None:
    client = await connect()
    ref = await client.put_copy(OWNER, "out", 0, np.ones(4), expires=soon(), wait=2.0)
    with pytest.raises(Denied):
        await client.get(ref.replace(offset="nowhere"))
    with pytest.raises(Denied):
        await client.put_copy(OWNER, "out", 0, np.array([object()]), expires=soon(), wait=2.0)
    with pytest.raises(Denied):
        await client.put_copy(OWNER, "x" * 20000, 0, np.ones(1), expires=soon(), wait=2.0)


async def test_the_commit_is_seen_by_a_get_that_overtakes_it(connect: Connect) -> None:
    """The Ref may reach a reader before the daemon has read the commit: that must never look like a lost block."""
    producer, reader = await connect(quota=16 * MIB), await connect(quota=0)
    for index in range(200):
        ref: Ref = await producer.put_copy(OWNER, "out", index, np.full(5, index), expires=soon(), wait=2.0)
        with await reader.get(ref) as lease:
            assert lease.array.tolist() == [index] * 5


async def test_a_closed_client_says_so(connect: Connect) -> None:
    client = await connect()
    await client.close()
    with pytest.raises(SidecarDown):
        await client.stats()
    await client.close()
