"""One answer of a language model, whichever engine draws its tokens: what was asked, and the text on its way out."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from components.engine import Call
from components.llm.chat import Chat, Detokenizer
from components.llm.prompt import Prompt
from components.llm.text import Stops, Unsaid
from cornstalk.errors import EngineError
from cornstalk.tasks.llm import LLM, MAX_IMAGES, MAX_VIDEOS
from cornstalk.values import out_of_range


class Drawn(NamedTuple):
    """A token of an answer. `likely`: the log probability of it and of the likeliest ones, where somebody asked."""

    token: int
    likely: Mapping[int, float] | None = None


@dataclass(frozen=True)
class Ask:
    """A checked request. The parts of a prompt are as they travel."""

    prompt: str | list[Any]
    system: str
    max_tokens: int
    stop: list[str]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: int | None
    logprobs: int | None
    json_schema: dict[str, Any] | None
    tools: list[dict[str, Any]]
    images: list[Any]
    videos: list[Any]
    times: list[list[float]]


def checked(inputs: Mapping[str, Any]) -> Ask:
    """Inputs may come from other tasks, so not all ranges were looked at before. Raises EngineError bad_input."""
    ask = Ask(**{**LLM.defaults, **inputs})
    for name, port in LLM.inputs.items():
        if name not in ("images", "videos") and (limit := out_of_range(port, getattr(ask, name))):
            raise EngineError(f"{name}: {limit}", "bad_input")
    if len(ask.images) > MAX_IMAGES:
        raise EngineError(f"{len(ask.images)} pictures were given; a prompt takes up to {MAX_IMAGES}", "bad_input")
    if len(ask.videos) > MAX_VIDEOS:
        raise EngineError(f"{len(ask.videos)} videos were given; a prompt takes up to {MAX_VIDEOS}", "bad_input")
    if len(ask.times) != len(ask.videos):
        raise EngineError(f"{len(ask.videos)} videos were given, and times of {len(ask.times)}", "bad_input")
    return ask


def longest(ask: Ask, prompt: Prompt, context: int, model: str) -> int:
    """How many tokens the answer may have, of a `context` for both. Raises EngineError prompt_too_long."""
    if (room := context - len(prompt)) < 1:
        raise EngineError(f"the prompt has {len(prompt)} tokens; {model} takes {context - 1}", "prompt_too_long")
    return min(ask.max_tokens, room)


def stored_tokens(call: Call) -> list[int]:
    """Those of earlier attempts. Each output has its own, of which the shorter is the beginning of the longer."""
    return max(call.prior_tokens.values(), key=len, default=[])


async def say(call: Call, chat: Chat, ask: Ask, tokens: AsyncIterator[Drawn]) -> int:
    """Emits what is new of the text of `tokens`, with them; the number of tokens up to the end or the stop string.

    `tokens` begins with the stored ones of earlier attempts and leaves the end token out. Raises LineageDiverged
    before it emits if those do not give the stored text.
    """
    text, stops = Detokenizer(chat, control=bool(ask.tools)), Stops(ask.stop)
    unsaid = Unsaid("".join(str(p) for p in call.prior.get("text", ())))
    stored, told = len(call.prior_tokens.get("text", ())), sum(len(p) for p in call.prior.get("logprobs", ()))
    drawn: list[int] = []
    async for token, likely in tokens:
        drawn.append(token)
        if likely is not None and len(drawn) > told:
            await call.emit("logprobs", [_logprob(chat, token, likely, ask.logprobs or 0)], (token,))
        if piece := unsaid.push(stops.push(text.push(token))):
            await call.emit("text", piece, drawn[stored:])
            stored = max(stored, len(drawn))
        if stops.hit:
            break
    rest = unsaid.push(stops.end())
    unsaid.end()
    if rest:
        await call.emit("text", rest, drawn[stored:])
    return len(drawn)


def _logprob(chat: Chat, token: int, likely: Mapping[int, float], top: int) -> dict[str, Any]:
    """cornstalk.tasks.llm.Logprob as it travels."""

    def one(token: int) -> dict[str, Any]:
        return {"token": token, "text": chat.text(token), "logprob": likely[token]}

    possible = [t for t in likely if likely[t] > -math.inf]  # a schema may leave fewer than were asked for
    return {**one(token), "top": [one(t) for t in sorted(possible, key=lambda t: -likely[t])[:top]]}
