"""The way of hidden states out of vLLM, with the scheduler's orders made by hand: in an engine they seldom come so."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tests.waiting import eventually

pytestmark = pytest.mark.filterwarnings("ignore:::torch", "ignore:::vllm", "ignore:::transformers")  # at their import

BLOCK = 4


def connector(monkeypatch: pytest.MonkeyPatch, *, rank: int = 0, worker: bool = False) -> Any:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

    from components.llm import vllm_thinker_model

    monkeypatch.setattr(vllm_thinker_model, "get_tensor_model_parallel_rank", lambda: rank)
    config = SimpleNamespace(
        cache_config=SimpleNamespace(block_size=BLOCK),
        kv_transfer_config=SimpleNamespace(kv_connector_extra_config={"address": "ipc://@cornstalk-nobody"}),
    )
    role = KVConnectorRole.WORKER if worker else KVConnectorRole.SCHEDULER
    return vllm_thinker_model.StatesConnector(config, role, None)


def new(name: str, blocks: list[int], heard_as: str | None, computed: int = 0) -> Any:
    from components.llm.vllm_states import HEARD_AS

    params = SimpleNamespace(extra_args={HEARD_AS: heard_as} if heard_as else None)
    return SimpleNamespace(req_id=name, block_ids=(blocks,), sampling_params=params, num_computed_tokens=computed)


def order(counts: dict[str, int], news: Any = (), again: Any = (), resumed: Any = (), gone: Any = ()) -> Any:
    """`again`: (name, new blocks, tokens computed before)."""
    cached = SimpleNamespace(
        req_ids=[name for name, _, _ in again],
        new_block_ids=[(blocks,) if blocks else None for _, blocks, _ in again],
        num_computed_tokens=[computed for _, _, computed in again],
        resumed_req_ids=set(resumed),
    )
    return SimpleNamespace(
        num_scheduled_tokens=counts,
        scheduled_new_reqs=list(news),
        scheduled_cached_reqs=cached,
        finished_req_ids=set(gone),
    )


def parts(made: Any, given: Any) -> list[tuple[str, int, int, int]]:
    found = made.build_connector_meta(given).parts
    return [(part.heard_as, part.start, part.count, part.slot) for part in found]


def test_each_step_says_whose_tokens_it_computes_and_where(monkeypatch: pytest.MonkeyPatch) -> None:
    made = connector(monkeypatch)
    first = order({"a": 6, "b": 3, "c": 2}, [new("a", [7, 2], "A"), new("b", [5], None), new("c", [9], "C")])
    assert parts(made, first) == [("A", 0, 6, 7 * BLOCK), ("C", 0, 2, 9 * BLOCK)]
    second = order({"a": 3, "c": 1}, again=[("a", [1], 6), ("b", [], 3), ("c", [], 2)])
    assert parts(made, second) == [("A", 6, 3, 2 * BLOCK + 2), ("C", 2, 1, 9 * BLOCK + 2)]
    assert parts(made, order({"a": 1}, again=[("a", [], 9)], gone=["c"])) == [("A", 9, 1, 1 * BLOCK + 1)]


def test_one_whose_memory_was_taken_begins_anew_in_other_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    made = connector(monkeypatch)
    parts(made, order({"a": 6}, [new("a", [7, 2], "A")]))
    assert parts(made, order({"a": 7}, again=[("a", [3, 4], 0)], resumed=["a"])) == [("A", 0, 7, 3 * BLOCK)]
    assert parts(made, order({"a": 1}, again=[("a", [], 7)])) == [("A", 7, 1, 4 * BLOCK + 3)]


def test_of_all_ranks_the_first_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {rank: connector(monkeypatch, rank=rank, worker=True) for rank in (0, 1, 7)}
    assert [rank for rank, one in made.items() if one._sender is not None] == [0]
    assert connector(monkeypatch)._sender is None, "a scheduler has no states"
    made[0].shutdown()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_states_reach_those_who_hear_and_nobody_else(dtype: str) -> None:
    import torch

    from components.llm.vllm_states import Sender, States

    states, heard = States(), asyncio.Queue[tuple[int, Any]]()
    sender = Sender(states.address)
    sent = [torch.randn(2, n, 8).to(getattr(torch, dtype)) for n in (5, 1)]
    with states.hearing("a", lambda start, given: heard.put_nowait((start, given))):
        for name, start, given in (("b", 0, sent[0]), ("a", 0, sent[0]), ("a", 5, sent[1])):
            sender.send(name, start, given)
        found = [await asyncio.wait_for(heard.get(), 10.0) for _ in sent]
    sender.close()
    await states.close()
    assert [start for start, _ in found] == [0, 5]
    for (_, given), expected in zip(found, sent, strict=True):
        assert given.dtype == expected.dtype
        assert torch.equal(given, expected)


async def test_a_sender_waits_for_a_worker_that_does_not_read_and_loses_nothing() -> None:
    import torch

    from components.llm.vllm_states import HELD, Sender, States

    large = torch.zeros(2, 1, 1 << 18)  # 2 MiB: more than a socket takes
    states, sent, heard = States(), list[int](), list[int]()
    sender = Sender(states.address, within=0.1)

    def send(count: int) -> None:
        for _ in range(count):
            sender.send("a", len(sent), large)
            sent.append(len(sent))

    with states.hearing("a", lambda start, given: heard.append(start)):
        with pytest.raises(TimeoutError, match="has read no hidden states"):
            send(3 * HELD)  # this loop, which would read, never runs meanwhile
        assert len(sent) >= HELD
        await eventually(lambda: heard == sent)
        send(1)
        await eventually(lambda: heard == sent)
    sender.close()
    await states.close()


def test_a_reply_tells_of_a_token_when_another_has_followed() -> None:
    import torch

    from components.llm.prompt import Prompt
    from components.llm.vllm_reply import Reply

    reply, told = Reply(Prompt([1, 2, 3]), 3), list[tuple[int, int]]()
    reply.listen = lambda start, states: told.append((start, states.shape[1]))
    states = torch.zeros(2, 8, 4)
    reply.hear(0, states[:, :2])
    reply.hear(2, states[:, 2:4])  # the last of the prompt and one of the reply
    assert told == [(0, 2), (2, 1)]
    reply.hear(0, states[:, :5])  # computed again, and one more
    assert told == [(0, 2), (2, 1)]


async def test_a_reply_that_ends_by_itself_tells_of_all_its_tokens_and_one_that_is_cut_off_not_of_the_last() -> None:
    import torch

    from components.llm.answer import Drawn
    from components.llm.prompt import Prompt
    from components.llm.vllm_reply import Reply

    async def drawn(count: int) -> Any:
        for token in range(count):
            yield Drawn(token)

    for count, expected in ((2, [(0, 1), (1, 1), (2, 1)]), (3, [(0, 1), (1, 1), (2, 1)])):
        reply, told = Reply(Prompt([1]), 3), list[tuple[int, int]]()
        reply.listen = lambda start, states, told=told: told.append((start, states.shape[1]))  # type: ignore[misc]
        assert [one.token async for one in reply.follow(drawn(count))] == list(range(count))
        waiting = asyncio.create_task(reply.told())
        reply.hear(0, torch.zeros(2, 4, 4))  # one more than is wanted: that of the end
        await waiting
        assert told == expected


async def test_a_reply_whose_states_do_not_come_ends() -> None:
    from components.llm.answer import Drawn
    from components.llm.prompt import Prompt
    from components.llm.vllm_reply import Reply
    from cornstalk.errors import EngineError

    async def drawn() -> Any:
        for token in range(2):
            yield Drawn(token)

    reply = Reply(Prompt([1]), 8)
    assert [one.token async for one in reply.follow(drawn())] == [0, 1]
    with pytest.raises(EngineError, match="drew 2 tokens and told states of 0") as caught:
        await reply.told(within=0.05)
    assert caught.value.transient
