"""Which tokens may come next, of a small tokenizer and models that know fewer or more tokens than it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from components.llm.chat import Chat
from components.llm.grammar import Grammar, Grammars, checked_schema
from cornstalk.errors import EngineError
from tests.components.tiny_lm import tiny_tokenizer

SCHEMA = {"enum": ["cat", "log"]}


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Chat:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    tiny_tokenizer().save_pretrained(folder)
    return Chat(folder)


def said(grammar: Grammar, chat: Chat, vocabulary: int) -> str:
    """What a model says that likes its highest token most."""
    import torch

    tokens: list[int] = []
    while not tokens or tokens[-1] not in chat.end_ids:
        assert len(tokens) < 20
        tokens.append(int(grammar.allow(torch.arange(vocabulary, dtype=torch.float32), tokens).argmax()))
    text: str = chat.backend.decode(tokens, skip_special_tokens=True)
    return text


@pytest.mark.parametrize("more", [-3, 0, 1, 64])
def test_it_says_what_fits_and_then_ends(chat: Chat, more: int) -> None:
    vocabulary = len(chat.tokenizer) + more
    grammar = Grammars(chat, vocabulary).of(SCHEMA)
    assert json.loads(said(grammar, chat, vocabulary)) in SCHEMA["enum"]
    grammar.check()


def test_tokens_of_another_grammar_are_no_answer(chat: Chat) -> None:
    import torch

    grammar = Grammars(chat, len(chat.tokenizer)).of(SCHEMA)
    grammar.allow(torch.zeros(len(chat.tokenizer)), chat.plain('"dog'))
    with pytest.raises(EngineError, match="left its json_schema"):
        grammar.check()


def test_a_schema_is_not_changed_and_may_say_how_it_is_written(chat: Chat) -> None:
    schema = {"type": "object", "x-guidance": {"key_separator": ":"}}
    assert json.loads(checked_schema(schema)) == schema
    assert "item_separator" in checked_schema({"type": "object"})
