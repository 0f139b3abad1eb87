"""One answer of a language model, whichever engine draws its tokens: what was asked, and the text on its way out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from components.engine import Call
from components.llm.chat import Chat, Detokenizer
from components.llm.text import Stops, Unsaid
from cornstalk.errors import EngineError
from cornstalk.tasks.llm import LLM, MAX_IMAGES

MAX_STOPS: Final = 16
MAX_TEMPERATURE: Final = 10.0


@dataclass(frozen=True)
class Ask:
    """A checked request."""

    prompt: str
    system: str
    max_tokens: int
    stop: list[str]
    temperature: float
    images: list[Any]


def checked(inputs: Mapping[str, Any]) -> Ask:
    """Raises EngineError bad_input."""
    ask = Ask(**{**LLM.defaults, **inputs})
    if ask.max_tokens < 1:
        raise EngineError(f"max_tokens is {ask.max_tokens}; it must be at least 1", "bad_input")
    if not 0.0 <= ask.temperature <= MAX_TEMPERATURE:
        raise EngineError(f"temperature is {ask.temperature}; it must be from 0 to {MAX_TEMPERATURE}", "bad_input")
    if len(ask.stop) > MAX_STOPS or not all(ask.stop):
        raise EngineError(f"stop takes up to {MAX_STOPS} strings, none of them empty", "bad_input")
    if len(ask.images) > MAX_IMAGES:
        raise EngineError(f"{len(ask.images)} pictures were given; a prompt takes up to {MAX_IMAGES}", "bad_input")
    return ask


async def say(call: Call, chat: Chat, stop: list[str], tokens: AsyncIterator[int], stored: int) -> int:
    """Emits what is new of the text of `tokens`, with them; the number of tokens up to the end or the stop string.

    `tokens` begins with the `stored` ones of earlier attempts and leaves the end token out. Raises LineageDiverged
    before it emits if those do not give the stored text.
    """
    text, stops = Detokenizer(chat), Stops(stop)
    unsaid = Unsaid("".join(str(p) for p in call.prior.get("text", ())))
    drawn: list[int] = []
    async for token in tokens:
        drawn.append(token)
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
