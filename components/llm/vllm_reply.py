"""One reply of vLLM, whose tokens and hidden states come on two ways, as ReplyRows reads it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Final

from components.llm.answer import Drawn
from components.llm.model import Listen
from components.llm.prompt import Prompt
from cornstalk.errors import EngineError

TOLD_WITHIN: Final = 60.0
"""Seconds after its last token in which all states of a reply are there: they are sent before the tokens."""


class Reply:
    """Tells `listen` the states of each token of the reply once it is known which it is and that another follows: of
    the last one there is nothing to tell. Those of the prompt are told at once. Lives on the event loop.
    """

    def __init__(self, prompt: Prompt, limit: int) -> None:
        self.prompt, self.tokens, self.forced = prompt, list[int](), list[int]()
        self.listen: Listen | None = None
        self._limit = limit
        self._heard = self._told = 0
        self._waiting: deque[Any] = deque()
        self._ended = False
        self._all_told = asyncio.Event()

    def hear(self, start: int, states: Any) -> None:
        """As components.llm.vllm_states.Hear. What vLLM computed again is known."""
        fresh = states[:, max(0, self._heard - start) :]
        while fresh.shape[1]:
            of_prompt = len(self.prompt) - self._heard
            part = fresh[:, : max(1, of_prompt)]
            if of_prompt > 0:
                self._listen(self._heard, part)
            else:
                self._waiting.append(part)
            self._heard += part.shape[1]
            fresh = fresh[:, part.shape[1] :]
        self._tell()

    async def follow(self, tokens: AsyncIterator[Drawn]) -> AsyncIterator[Drawn]:
        """`tokens` without the end token, which vLLM drew if there are fewer than the limit."""
        async for drawn in tokens:
            self.tokens.append(drawn.token)
            self._tell()
            yield drawn
        self._ended = True
        self._tell()

    async def told(self, within: float = TOLD_WITHIN) -> None:
        """Waits for the states of all tokens that have some. Raises a transient EngineError after `within` seconds."""
        try:
            await asyncio.wait_for(self._all_told.wait(), within)
        except TimeoutError as error:
            raise EngineError(
                f"vLLM drew {len(self.tokens)} tokens and told states of {self._told} within {within:g} s more",
                transient=True,
            ) from error
        await asyncio.sleep(0)  # until what hears them has them

    def _tell(self) -> None:
        """The token of a state is known when another has been drawn after it."""
        followed = len(self.tokens) - (not self._ended or len(self.tokens) == self._limit)
        while self._waiting and self._told < followed:
            self._listen(len(self.prompt) + self._told, self._waiting.popleft())
            self._told += 1
        if self._ended and self._heard >= len(self.prompt) and self._told >= followed:
            self._all_told.set()

    def _listen(self, start: int, states: Any) -> None:
        if self.listen is not None:
            self.listen(start, states)
