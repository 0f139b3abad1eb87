"""What a talker needs of its thinker, while the thinker still thinks: a stream of rows."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol, Self

from components.engine import Call
from components.llm.model import Listen
from components.llm.prompt import Prompt
from components.llm.talker_edge import TalkerEdge


class Said(Protocol):
    """One reply while it is drawn, by whichever engine. `listen` hears the states of each token once and in order."""

    prompt: Prompt
    tokens: list[int]
    forced: list[int]
    listen: Listen | None


class ReplyRows:
    """Rows of one reply, told by the thread of the model and emitted on the event loop, in order, each once.

    An attempt that goes on hears all states anew and emits the tensors that are not stored. Leaving the context tells
    the end, and raises what went wrong.
    """

    def __init__(self, call: Call, said: Said, edge: TalkerEdge, voice: Any) -> None:
        """`voice` is what the edge knows the speaker by."""
        self._call, self._said, self._edge, self._voice = call, said, edge, voice
        said.listen = self._listen
        self._told = sum(len(piece) for piece in call.prior.get("rows", ()))
        self._loop = asyncio.get_running_loop()
        self._heard: asyncio.Queue[tuple[list[Any], tuple[int, ...]] | None] = asyncio.Queue()  # at most one a token
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
        """In any thread; `states` [taps, n, size]."""
        said, prompt, n = self._said, self._said.prompt, states.shape[1]
        media = [place - start for place in prompt.places(start, start + n)[0]]
        rows = self._edge.rows(states, media).cpu()
        reply = start - len(prompt)
        if reply >= 0:
            token = said.tokens[reply] if reply < len(said.tokens) else said.forced[reply - len(said.tokens)]
            self._hand_over([rows], (token,))
            return
        self._parts.append(rows)
        if start + n == len(prompt):
            self._hand_over(self._edge.begin(prompt, _joined(self._parts), self._voice), ())
            self._parts = []

    def _hand_over(self, tensors: list[Any], tokens: tuple[int, ...]) -> None:
        self._loop.call_soon_threadsafe(self._heard.put_nowait, (tensors, tokens))

    async def _tell(self) -> None:
        count = pieces = 0
        while (heard := await self._heard.get()) is not None:
            count = await self._emit(count, *heard)
            pieces += 1
        if pieces > 1:  # a reply that ends at once is not said
            await self._emit(count, self._edge.end, ())

    async def _emit(self, count: int, tensors: Sequence[Any], tokens: Sequence[int]) -> int:
        """`count` came before. Emits those of the tensors that are not stored."""
        if fresh := list(tensors[max(0, self._told - count) :]):
            await self._call.emit("rows", fresh, tokens)
        return count + len(tensors)


def _joined(parts: Sequence[Any]) -> Any:
    import torch

    return torch.cat(list(parts))
