"""What every engine of language models must do, on the real weights of SmolLM2. A module that imports these tests has
a fixture `engine` for them.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import pytest

from components import engine as seam
from components.engine import Cancelled
from components.llm.chat import Chat
from cornstalk.errors import EngineError, LineageDiverged
from tests.components.fake_call import FakeCall

PARIS = "What is the capital of France?"
PROMPTS = [
    PARIS,
    "Tell me a story about a fox.",
    "Count from one to ten.",
    "Why is the sky blue? " * 12,
    "Say hello.",
    "Write a poem about the sea.",
    "List three colours.",
    "What is 2 + 2?",
]


class Engine(seam.Engine, Protocol):
    """One of ours: its tokens are known."""

    _chat: Chat


async def say(engine: Engine, prompt: str = PARIS, **inputs: Any) -> FakeCall:
    call = FakeCall(prompt=prompt, **inputs)
    result = await engine.run(call)
    assert result == {"tokens": call.tokens_out}
    return call


def flat(tokens: list[tuple[int, ...]]) -> list[int]:
    return [token for some in tokens for token in some]


def stored(call: FakeCall, pieces: int) -> dict[str, Any]:
    """What the next attempt is given if the first `pieces` of a call are stored."""
    return {"prior": {"text": call.pieces("text")[:pieces]}, "prior_tokens": {"text": flat(call.tokens[:pieces])}}


async def test_it_answers_in_pieces(engine: Engine) -> None:
    call = await say(engine)
    assert call.text == "The capital of France is Paris."
    assert call.pieces("text")[:2] == ["The", " capital"]
    assert (call.tokens_in, call.tokens_out) == (37, 7)


async def test_the_answer_ends_at_max_tokens(engine: Engine) -> None:
    call = await say(engine, max_tokens=3)
    assert (call.text, call.tokens_out) == ("The capital of", 3)


async def test_the_answer_ends_before_a_stop_string_that_spans_tokens(engine: Engine) -> None:
    assert (await say(engine, stop=["nce is P", "never"])).text == "The capital of Fra"


async def test_the_system_text_is_heard(engine: Engine) -> None:
    call = await say(engine, "Who are you?", system="You are Captain Ahab.", max_tokens=16)
    assert "Ahab" in call.text


async def test_the_seed_alone_decides_what_is_drawn(engine: Engine) -> None:
    async def drawn(seed: int) -> str:
        call = FakeCall(prompt=PROMPTS[1], temperature=1.0, max_tokens=12, seed=seed)
        await engine.run(call)
        return call.text

    first, again, other = await asyncio.gather(drawn(7), drawn(7), drawn(2**64 - 1))
    assert first == again != other


async def test_the_seed_of_the_request_comes_before_that_of_the_call(engine: Engine) -> None:
    async def drawn(ours: int, of_the_call: int) -> str:
        call = FakeCall(prompt=PROMPTS[1], temperature=1.0, max_tokens=12, seed=of_the_call)
        call.inputs["seed"] = ours
        await engine.run(call)
        return call.text

    first, again, other = await asyncio.gather(drawn(7, 1), drawn(7, 2), drawn(2**64 - 1, 1))
    assert first == again != other


@pytest.mark.parametrize("limit", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}])
async def test_of_one_token_that_is_left_the_likeliest_text_is_made(engine: Engine, limit: dict[str, Any]) -> None:
    call = await say(engine, temperature=2.0, **limit)
    assert call.text == "The capital of France is Paris."


@pytest.mark.parametrize(
    "limits", [{"top_k": 40}, {"top_p": 0.9}, {"min_p": 0.02}, {"top_k": 40, "top_p": 0.9, "min_p": 0.02}]
)
async def test_limits_leave_something_to_draw(engine: Engine, limits: dict[str, Any]) -> None:
    texts = [(await say(engine, PROMPTS[5], temperature=1.5, max_tokens=12, seed=s, **limits)).text for s in (1, 2)]
    assert texts[0] != texts[1]


async def test_a_penalty_on_repetition_is_for_tokens_of_the_prompt_too(engine: Engine) -> None:
    assert "France" not in (await say(engine, repetition_penalty=3.0, max_tokens=12)).text


@pytest.mark.parametrize("penalty", ["presence_penalty", "frequency_penalty"])
async def test_penalties_are_for_tokens_of_the_answer(engine: Engine, penalty: str) -> None:
    plain, varied, dull = [await say(engine, PROMPTS[5], max_tokens=32, **{penalty: size}) for size in (0.0, 2.0, -2.0)]
    kinds = [len(set(flat(call.tokens))) for call in (varied, plain, dull)]
    assert kinds == sorted(kinds, reverse=True)
    assert kinds[0] > kinds[2]


@pytest.mark.parametrize("penalty", ["presence_penalty", "frequency_penalty", "repetition_penalty"])
async def test_stored_tokens_count_for_penalties(engine: Engine, penalty: str) -> None:
    inputs = {"max_tokens": 16, penalty: 2.0}
    whole = await say(engine, PROMPTS[1], **inputs)
    again = await say(engine, PROMPTS[1], **inputs, **stored(whole, 7))
    assert again.tokens_out == whole.tokens_out
    assert flat(whole.tokens[:7]) + flat(again.tokens) == flat(whole.tokens)


@pytest.mark.parametrize("told", [1, 7, 16])
async def test_the_likeliest_text_is_gone_on_with_as_if_nothing_had_happened(engine: Engine, told: int) -> None:
    whole = await say(engine, PROMPTS[1], max_tokens=16)
    again, _beside = await asyncio.gather(
        say(engine, PROMPTS[1], max_tokens=16, **stored(whole, told)), say(engine, PROMPTS[5], max_tokens=8)
    )
    assert "".join(whole.pieces("text")[:told]) + again.text == whole.text
    assert again.tokens_out == whole.tokens_out
    assert flat(whole.tokens[:told]) + flat(again.tokens) == flat(whole.tokens)


async def test_it_is_forced_to_the_stored_tokens_also_to_unlikely_ones(engine: Engine) -> None:
    """As another machine, or a text that has other tokens than those that were drawn, would have it."""
    unusual = [token for part in ("It is the c", "ity of") for token in engine._chat.plain(part)]
    assert unusual != engine._chat.plain("It is the city of")
    call = await say(engine, prior={"text": ["It", " is the city of"]}, prior_tokens={"text": unusual})
    assert call.text.startswith(" ")
    assert "France" in call.text


async def test_stored_text_that_its_tokens_do_not_give_is_no_part_of_a_mixture(engine: Engine) -> None:
    with pytest.raises(LineageDiverged):
        await say(engine, prior={"text": ["The city"]}, prior_tokens={"text": engine._chat.plain("The capital")})


async def test_the_text_before_a_stop_string_may_all_be_stored(engine: Engine) -> None:
    whole = await say(engine, stop=[" is"])
    again = await say(engine, stop=[" is"], **stored(whole, 10))
    assert (whole.text, again.pieces("text")) == ("The capital of France", [])
    assert again.tokens_out == whole.tokens_out


async def test_cancelled_it_says_no_more_and_the_others_go_on(engine: Engine) -> None:
    doomed = FakeCall(prompt=PROMPTS[1], max_tokens=500)

    def cancel(call: FakeCall) -> None:
        if len(call.log) == 3:
            call.cancelled.set()

    doomed.on_emit = cancel
    beside = asyncio.create_task(say(engine))
    with pytest.raises(Cancelled):
        await engine.run(doomed)
    assert len(doomed.log) == 3
    assert (await beside).text == "The capital of France is Paris."


@pytest.mark.parametrize(
    "inputs",
    [
        {"max_tokens": 0},
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": 11.0},
        {"stop": [""]},
        {"stop": ["x"] * 17},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_k": -1},
        {"min_p": 1.1},
        {"repetition_penalty": 0.0},
        {"presence_penalty": 2.1},
        {"frequency_penalty": float("inf")},
        {"seed": -1},
    ],
)
async def test_what_cannot_be_meant_is_refused(engine: Engine, inputs: dict[str, Any]) -> None:
    call = FakeCall(prompt=PARIS)
    call.inputs |= inputs
    with pytest.raises(EngineError, match=f"^{next(iter(inputs))}: ") as caught:
        await engine.run(call)
    assert caught.value.engine_code == "bad_input"


@pytest.mark.parametrize("prompt", ["", " ", "日本の首都はどこですか？", "😀" * 50, "\x00\ufffd\u202e"])
async def test_any_text_is_a_prompt(engine: Engine, prompt: str) -> None:
    assert "\ufffd" not in (await say(engine, prompt, max_tokens=12)).text.replace(prompt, "")
