"""What the talker of Qwen2.5-Omni needs of its thinker: rows that are embedding plus last hidden state of a token."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Self

from components.engine import Call
from components.llm.batch import Generation


class ReplyRows:
    """Rows of one generation, told by the thread of the model and emitted on the event loop, in order, each once.

    Sounds are told by their hidden states alone. An attempt that goes on hears all rows anew and emits what is not
    stored: a tensor for the prompt, one for each token but the last, one for the end. Leaving the context tells the
    end, and raises what went wrong.
    """

    def __init__(self, call: Call, generation: Generation, begin: Any, end: Any) -> None:
        """`begin` [1, size] stands after the prompt, `end` [2, size] after the reply."""
        self._call, self._said, self._begin, self._end = call, generation, begin, end
        generation.listen = self._listen
        self._told = sum(len(piece) for piece in call.prior.get("rows", ()))
        self._loop = asyncio.get_running_loop()
        self._heard: asyncio.Queue[tuple[Any, tuple[int, ...]] | None] = asyncio.Queue()  # at most a row a token
        self._parts: list[Any] = []
        self._telling: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        self._telling = asyncio.create_task(self._tell())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._heard.put_nowait(None)
            await self._telling
        else:
            self._telling.cancel()
            await asyncio.wait([self._telling])

    def _listen(self, start: int, states: Any) -> None:
        """In the thread of the model; `states` [2, n, size] are embeddings and last hidden states."""
        rows = states[1] + states[0]
        said, prompt = self._said, self._said.prompt
        reply = start - len(prompt)
        if reply >= 0:
            token = said.tokens[reply] if reply < len(said.tokens) else said.forced[reply - len(said.tokens)]
            self._hand_over(rows, (token,))
            return
        sounds, _ = prompt.places(start, start + rows.shape[0])
        at = [place - start for place in sounds]
        rows[at] = states[1][at]
        self._parts.append(rows)
        if start + rows.shape[0] == len(prompt):
            self._hand_over(_joined([*self._parts, self._begin]), ())
            self._parts = []

    def _hand_over(self, rows: Any, tokens: tuple[int, ...]) -> None:
        self._loop.call_soon_threadsafe(self._heard.put_nowait, (rows.cpu(), tokens))

    async def _tell(self) -> None:
        count = 0
        while (heard := await self._heard.get()) is not None:
            await self._emit(count, *heard)
            count += 1
        if count > 1:  # a reply that ends at once is not said
            await self._emit(count, self._end, ())

    async def _emit(self, count: int, rows: Any, tokens: Sequence[int]) -> None:
        if count >= self._told:
            await self._call.emit("rows", [rows], tokens)


def _joined(parts: Sequence[Any]) -> Any:
    import torch

    return torch.cat([part.cpu() for part in parts])
