"""Sequences of a language model in a continuous batch: prompts are read in parts, all answers are written together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from components.continuous import ContinuousBatch, Member, Stage
from components.llm.answer import Drawn
from components.llm.grammar import Grammar
from components.llm.model import PROMPT_ROWS, STEP_ROWS, Listen, Model, Rows
from components.llm.prompt import Prompt

Sample = Callable[[Any, Sequence[int]], int]
"""Logits [vocabulary] float32 and the tokens before -> token. Called once per token, in order."""
Check = Callable[[], None]
"""Raises when the sequence is not wanted any more."""


class Generation(Member[Drawn]):
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
        super().__init__(check)
        self.prompt, self.limit, self.end_ids, self.listen = prompt, limit, end_ids, listen
        self.sample, self.forced = sample, list(forced)
        self.logprobs, self.grammar = logprobs, grammar
        self.read = 0  # tokens of the prompt in memory
        self.tokens: list[int] = []
        self.memory: Any = None

    @property
    def ended(self) -> bool:
        return len(self.tokens) >= self.limit or bool(self.tokens and self.tokens[-1] in self.end_ids)

    def told(self, drawn: Sequence[Drawn]) -> list[Drawn]:
        """Without the token that ends it."""
        return [one for one in drawn if one.token not in self.end_ids]

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


class Batch(ContinuousBatch[Generation, Drawn]):
    """Tokens without the one that ends them. A prompt is read in parts between the steps that write: a long one stops
    nobody for long.
    """

    def __init__(self, model: Model) -> None:
        super().__init__("llm", STEP_ROWS)
        self._model = model
        self._reading = Stage(self._read, 1)
        self._writing = Stage(self._advance, STEP_ROWS)

    def stage(self, member: Generation) -> Stage[Generation, Drawn]:
        return self._reading if member.read < len(member.prompt) else self._writing

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
        return [generation.told([generation.take(logits)])]

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
            g.told([g.take(after) for _, after in zip(r.tokens, logits, strict=False)])
            for g, r in zip(members, rows, strict=True)
        ]
