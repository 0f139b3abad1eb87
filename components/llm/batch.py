"""Continuous batching: sequences join and leave between the steps of one thread, and each step advances all of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from components.llm.answer import Drawn
from components.llm.grammar import Grammar
from components.llm.model import PROMPT_ROWS, STEP_ROWS, Listen, Model, Rows
from components.llm.prompt import Prompt
from cornstalk.errors import EngineError

Sample = Callable[[Any, Sequence[int]], int]
"""Logits [vocabulary] float32 and the tokens before -> token. Called once per token, in order."""
Check = Callable[[], None]
"""Raises when the sequence is not wanted any more."""


class Generation:
    """One sequence of up to `limit` tokens, which begins with those it is `forced` to (fast: many in one step).

    `logprobs`: of how many of the likeliest tokens beside each, None of none at all.

    `listen` hears the hidden states of each token that the model reads, of the prompt too, once and in order.

    A token is drawn for each forced one as well, and thrown away: the draws after them are those of an undisturbed run.
    """

    def __init__(
        self,
        prompt: Prompt,
        limit: int,
        end_ids: frozenset[int],
        sample: Sample,
        check: Check,
        forced: Sequence[int] = (),
        listen: Listen | None = None,
        logprobs: int | None = None,
        grammar: Grammar | None = None,
    ) -> None:
        self.prompt, self.limit, self.end_ids, self.listen = prompt, limit, end_ids, listen
        self.sample, self.check, self.forced = sample, check, list(forced)
        self.logprobs, self.grammar = logprobs, grammar
        self.read = 0  # tokens of the prompt in memory
        self.tokens: list[int] = []
        self.memory: Any = None
        self.ready: asyncio.Queue[Drawn | Exception | None] = asyncio.Queue()  # at most `limit` tokens and the end

    @property
    def ended(self) -> bool:
        return len(self.tokens) >= self.limit or bool(self.tokens and self.tokens[-1] in self.end_ids)

    def take(self, logits: Any) -> Drawn:
        """Keeps a token: the drawn one, if it is not forced to another."""
        if self.grammar is not None:
            logits = self.grammar.allow(logits, self.tokens)
        drawn = self.sample(logits, self.tokens)
        token = self.forced.pop(0) if self.forced else drawn
        self.tokens.append(token)
        return Drawn(token, None if self.logprobs is None else _likely(logits, token, self.logprobs))


def _likely(logits: Any, token: int, most: int) -> dict[int, float]:
    logprobs = logits.log_softmax(-1)
    values, tokens = logprobs.topk(most)
    return dict(zip(tokens.tolist(), values.tolist(), strict=True)) | {token: float(logprobs[token])}


class Batch:
    """Steps while there are sequences. A prompt is read in parts between them, so a long one stops nobody for long."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="llm")
        self._members: list[Generation] = []
        self._stepper: asyncio.Task[None] | None = None
        self._just_read = False
        self.steps = self.last = 0  # of the last step: its members
        self.longest = 0.0

    async def generate(self, generation: Generation) -> AsyncGenerator[Drawn, None]:
        """Tokens as they come, without the end token. The sequence leaves when the iterator is closed: use aclosing.

        Raises what its check raises, and a transient EngineError when the batch is closed or its step fails.
        """
        if len(self._members) >= STEP_ROWS:
            raise EngineError(f"{STEP_ROWS} sequences are running", transient=True)
        self._members.append(generation)
        if self._stepper is None:
            self._stepper = asyncio.create_task(self._run())
        try:
            while (drawn := await generation.ready.get()) is not None:
                if isinstance(drawn, Exception):
                    raise drawn
                yield drawn
        finally:
            self._leave(generation)

    async def close(self) -> None:
        """Ends what still runs, after the step that runs."""
        if self._stepper is not None:
            self._stepper.cancel()
            await asyncio.wait([self._stepper])
        self._fail(list(self._members), EngineError("the engine was stopped", transient=True))
        self._thread.shutdown()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._wanted():
                began = time.perf_counter()
                step, members = self._next()
                try:
                    fresh = await loop.run_in_executor(self._thread, step, members)
                except Exception as error:
                    self._fail(members, EngineError(f"a step failed: {error}", transient=True))
                    continue
                self.steps += 1
                self.last, self.longest = len(members), max(self.longest, time.perf_counter() - began)
                for generation, drawn in zip(members, fresh, strict=True):
                    self._deliver(generation, drawn)
        finally:
            self._stepper = None

    def _wanted(self) -> bool:
        """Ends who is cancelled; True if someone is left."""
        for generation in list(self._members):
            try:
                generation.check()
            except Exception as error:
                self._fail([generation], error)
        return bool(self._members)

    def _next(self) -> tuple[Callable[[list[Generation]], list[list[Drawn]]], list[Generation]]:
        """One that reads its prompt, or all that generate; by turns if there are both."""
        reading = [g for g in self._members if g.read < len(g.prompt)]
        generating = [g for g in self._members if g.read >= len(g.prompt)]
        self._just_read = bool(reading) and not (self._just_read and generating)
        if not self._just_read:
            return self._advance, generating
        self._members.remove(reading[0])
        self._members.append(reading[0])  # the next part is another's, if another reads
        return self._read, reading[:1]

    def _leave(self, generation: Generation) -> None:
        if generation in self._members:
            self._members.remove(generation)

    def _fail(self, members: Sequence[Generation], error: Exception) -> None:
        for generation in members:
            self._leave(generation)
            generation.ready.put_nowait(error)

    def _deliver(self, generation: Generation, fresh: Sequence[Drawn]) -> None:
        for drawn in fresh:
            if drawn.token not in generation.end_ids:
                generation.ready.put_nowait(drawn)
        if generation.ended:
            self._leave(generation)
            generation.ready.put_nowait(None)

    def _read(self, members: list[Generation]) -> list[list[Drawn]]:
        (generation,) = members
        if generation.memory is None:
            generation.memory = self._model.memory(len(generation.prompt) + generation.limit)
        start, prompt = generation.read, generation.prompt
        end = prompt.end_of_part(start, PROMPT_ROWS)
        logits = self._model.read(Rows(generation.memory, start, prompt.tokens[start:end], prompt, generation.listen))
        generation.read = end
        if generation.read < len(generation.prompt):
            return [[]]
        return [[generation.take(logits)]]

    def _advance(self, members: list[Generation]) -> list[list[Drawn]]:
        spare = STEP_ROWS - len(members)
        rows = []
        for g in members:
            room = min(spare, g.limit - len(g.tokens) - 1, len(g.forced))
            spare -= room
            said = (g.tokens[-1], *g.forced[:room])
            rows.append(Rows(g.memory, len(g.prompt) + len(g.tokens) - 1, said, g.prompt, g.listen))
        logits = iter(self._model.step(rows))
        return [
            [g.take(after) for _, after in zip(r.tokens, logits, strict=False)]
            for g, r in zip(members, rows, strict=True)
        ]
