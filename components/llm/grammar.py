"""Answers that fit a JSON schema: of each next token, whether the text could still become one that fits.

llguidance decides it here and inside vLLM, so both engines allow the same texts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from components.llm.chat import Chat
from cornstalk.errors import EngineError

_ONE_LINE: Final = {"x-guidance": {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}}
"""Blanks at two places, and at most one: small models know no end of them. Separators are regular expressions."""


def checked_schema(schema: Mapping[str, Any]) -> str:
    """What llguidance and vLLM take for a schema. Raises EngineError bad_input, and for a package that is missing."""
    try:
        from llguidance import LLMatcher
    except ImportError as error:
        raise EngineError("answers by a schema need llguidance: pip install 'cornstalk[models]'") from error
    try:
        text = json.dumps(_ONE_LINE | dict(schema), allow_nan=False)
        why = LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(text), None)
    except (ValueError, TypeError) as error:
        why = str(error)
    if why:
        raise EngineError(f"json_schema: {why.splitlines()[0]}", "bad_input")
    return text


class Grammars:
    """Of one model, whose logits have `vocabulary` values. `of` is safe from any thread; the first takes 0.6 s."""

    def __init__(self, chat: Chat, vocabulary: int) -> None:
        self._chat, self._vocabulary = chat, vocabulary

    @cached_property
    def _tokenizer(self) -> Any:
        from llguidance.hf import from_tokenizer

        tokenizer = self._chat.tokenizer
        return from_tokenizer(tokenizer, n_vocab=max(self._vocabulary, len(tokenizer)))

    def of(self, schema: Mapping[str, Any]) -> Grammar:
        """Raises as `checked_schema`."""
        from llguidance import LLMatcher

        text = checked_schema(schema)
        matcher = LLMatcher(self._tokenizer, LLMatcher.grammar_from_json_schema(text), log_level=0)
        return Grammar(matcher, self._tokenizer.vocab_size)


class Grammar:
    """Of one answer, as far as it has been looked at."""

    def __init__(self, matcher: Any, size: int) -> None:
        self._matcher, self._size, self._seen = matcher, size, 0

    def allow(self, logits: Any, tokens: Sequence[int]) -> Any:
        """Logits [vocabulary] in which what cannot come after `tokens` is impossible: after the last one all but the
        end.
        """
        import numpy as np
        import torch
        from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

        for token in tokens[self._seen :]:
            self._matcher.consume_token(token)
        self._seen = len(tokens)
        bits = allocate_token_bitmask(1, self._size)  # a tokenizer may know more tokens than the model
        fill_next_token_bitmask(self._matcher, bits)
        allowed = np.unpackbits(bits.view(np.uint8)[0], bitorder="little")[: logits.shape[0]]
        return logits.masked_fill(torch.from_numpy(allowed == 0), float("-inf"))

    def check(self) -> None:
        """Raises EngineError if the tokens were none of this grammar, or it has become too complex."""
        if self._matcher.is_error():
            raise EngineError(f"the answer left its json_schema: {self._matcher.get_error().splitlines()[0]}")
