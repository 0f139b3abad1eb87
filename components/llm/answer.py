"""One answer of a language model, whichever engine draws its tokens: what was asked, and the text on its way out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from components.engine import Call
from components.llm.chat import Chat, Detokenizer
from components.llm.text import Stops, Unsaid
from cornstalk.errors import EngineError
from cornstalk.tasks.llm import LLM, MAX_IMAGES
from cornstalk.values import out_of_range


@dataclass(frozen=True)
class Ask:
    """A checked request."""

    prompt: str
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
    images: list[Any]


def checked(inputs: Mapping[str, Any]) -> Ask:
    """Inputs may come from other tasks, so not all ranges were looked at before. Raises EngineError bad_input."""
    ask = Ask(**{**LLM.defaults, **inputs})
    for name, port in LLM.inputs.items():
        if name != "images" and (limit := out_of_range(port, getattr(ask, name))):
            raise EngineError(f"{name}: {limit}", "bad_input")
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
