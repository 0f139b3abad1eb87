"""Few chunks, in order, the first at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.coalescer import CHUNK_BYTES, LARGEST, WAITING_BYTES, Closed, Coalescer
from broker.errors import Superseded
from cornstalk.messages import Upload, encode
from tests.waiting import eventually


class Writer:
    """Keeps what is appended, as fast as it is let."""

    def __init__(self) -> None:
        self.chunks: list[Any] = []
        self.tokens: list[tuple[int, ...]] = []
        self.go = asyncio.Event()
        self.go.set()
        self.error: Exception | None = None

    async def append(self, payload: Any, tokens: tuple[int, ...] = ()) -> int:
        await self.go.wait()
        if self.error is not None:
            raise self.error
        self.chunks.append(payload)
        self.tokens.append(tokens)
        return len(self.chunks)


async def test_tokens_stand_with_the_end_of_the_text_they_gave() -> None:
    """Stored before all of its text, a token would be taken for said."""
    writer = Writer()
    async with Coalescer(writer) as output:
        await output.add("a", (1,))
        await output.add("b", (2, 3))
        await output.add("c" * (LARGEST + 1), (4,))
        await output.add("d")
    assert "".join(writer.chunks) == "ab" + "c" * (LARGEST + 1) + "d"
    said = ""
    for text, tokens in zip(writer.chunks, writer.tokens, strict=True):
        said += text
        if 4 in tokens:
            break
        assert len(said) < LARGEST + 3
    assert said.count("c") == LARGEST + 1
    assert [token for tokens in writer.tokens for token in tokens] == [1, 2, 3, 4]


async def test_first_piece_goes_at_once_and_the_next_are_joined() -> None:
    writer = Writer()
    async with Coalescer(writer) as output:
        await output.add("a")
        await asyncio.sleep(0.01)
        assert writer.chunks == ["a"]
        for piece in "bcd":
            await output.add(piece)
        await asyncio.sleep(0)
        assert writer.chunks == ["a"]
        await eventually(lambda: writer.chunks == ["a", "bcd"], within=0.5)
    assert writer.chunks == ["a", "bcd"]


async def test_a_piece_after_a_pause_goes_at_once() -> None:
    writer = Writer()
    async with Coalescer(writer) as output:
        await output.add("a")
        await asyncio.sleep(0.05)
        await output.add("b")
        await asyncio.sleep(0.01)
        assert writer.chunks == ["a", "b"]


async def test_enough_bytes_do_not_wait() -> None:
    writer = Writer()
    async with Coalescer(writer) as output:
        await output.add(b"a")
        await asyncio.sleep(0.005)
        await output.add(b"x" * CHUNK_BYTES)
        await asyncio.sleep(0.005)
        assert len(writer.chunks) == 2


async def test_kinds_are_not_mixed_and_other_values_stand_alone() -> None:
    writer = Writer()
    upload = Upload("d", 1, "text/plain")
    writer.go.clear()
    async with Coalescer(writer) as output:
        for piece in ("a", "b", b"c", b"d", [1], [2, 3], upload, upload, "e", "", b"", []):
            await output.add(piece)
        writer.go.set()
    assert writer.chunks == ["ab", b"cd", [1, 2, 3], upload, upload, "e"]


async def test_flush_returns_when_all_is_stored() -> None:
    writer = Writer()
    output = Coalescer(writer)
    await output.flush()
    await output.add("a")
    await output.add("b")
    await output.flush()
    assert "".join(writer.chunks) == "ab"
    await output.close()
    await output.close()
    with pytest.raises(RuntimeError):
        await output.add("c")


async def test_an_error_of_the_writer_comes_with_the_next_call() -> None:
    writer = Writer()
    writer.error = Superseded("another")
    output = Coalescer(writer)
    await output.add("a")
    await asyncio.sleep(0.01)
    for call in (output.add("b"), output.flush(), output.close()):
        with pytest.raises(Superseded):
            await call


async def test_a_slow_writer_holds_up_its_producer() -> None:
    writer = Writer()
    writer.go.clear()
    output = Coalescer(writer)

    async def produce() -> None:
        for _ in range(100):
            await output.add(b"x" * CHUNK_BYTES)

    producing = asyncio.create_task(produce())
    await asyncio.sleep(0.05)
    assert not producing.done()
    assert output._bytes <= WAITING_BYTES + CHUNK_BYTES
    writer.go.set()
    await producing
    await output.close()
    assert sum(len(chunk) for chunk in writer.chunks) == 100 * CHUNK_BYTES


async def test_an_error_wakes_a_blocked_producer() -> None:
    writer = Writer()
    writer.go.clear()
    writer.error = Superseded("another")
    output = Coalescer(writer)

    async def produce() -> None:
        while True:
            await output.add(b"x" * CHUNK_BYTES)

    producing = asyncio.create_task(produce())
    await asyncio.sleep(0.02)
    writer.go.set()
    with pytest.raises(Superseded):
        await asyncio.wait_for(producing, 2)
    await output.abandon()


async def test_who_waits_is_told_when_the_output_is_abandoned() -> None:
    writer = Writer()
    writer.go.clear()
    output = Coalescer(writer)
    await output.add(b"x" * (WAITING_BYTES + LARGEST))
    waiting = [asyncio.create_task(output.add(b"y")), asyncio.create_task(output.flush())]
    done, _ = await asyncio.wait(waiting, timeout=0.05)
    assert not done
    await output.abandon()
    for task in waiting:
        with pytest.raises(Closed):
            await asyncio.wait_for(task, 2)
    with pytest.raises(Closed):
        await output.add(b"z")


async def test_a_failed_attempt_stores_no_more() -> None:
    writer = Writer()

    async def attempt() -> None:
        async with Coalescer(writer) as output:
            await output.add("a")
            await asyncio.sleep(0.005)
            await output.add("b")
            raise ValueError("engine")

    with pytest.raises(ValueError, match="engine"):
        await attempt()
    assert writer.chunks == ["a"]


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.one_of(st.text(max_size=5), st.binary(max_size=5), st.lists(st.integers(0, 9), max_size=3)), max_size=20
    )
)
def test_nothing_is_lost_or_moved(pieces: list[Any]) -> None:
    async def run() -> list[Any]:
        writer = Writer()
        async with Coalescer(writer) as output:
            for piece in pieces:
                await output.add(piece)
        return writer.chunks

    flat = lambda values: [(type(value), element) for value in values for element in value]  # noqa: E731
    assert flat(asyncio.run(run())) == flat(pieces)


@pytest.mark.parametrize("piece", ["é" * LARGEST, b"x" * (3 * LARGEST + 1), ["token"] * LARGEST, "x" * LARGEST])
async def test_large_pieces_are_cut_to_fit(piece: Any) -> None:
    writer = Writer()
    async with Coalescer(writer) as output:
        await output.add(piece)
    assert all(len(encode(chunk)) < 900 << 10 for chunk in writer.chunks)
    whole = writer.chunks[0]
    for chunk in writer.chunks[1:]:
        whole = whole + chunk
    assert whole == piece
