"""Text to tokens and back: the chat template, and pieces of text that end between characters."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

_SYSTEM: Final = "\ufdd0"  # noncharacters: no template holds them
_USER: Final = "\ufdd1"


class Chat:
    """Tokenizer and chat template of one model. Loads in 1 s; `prompt` is safe from any thread."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self.backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._plain = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._plain.encode_special_tokens = True
        self.end_ids = frozenset({tokenizer.eos_token_id})
        user = {"role": "user", "content": _USER}
        self._alone = _render(tokenizer, [user])
        self._led = _render(tokenizer, [{"role": "system", "content": _SYSTEM}, user])

    def prompt(self, prompt: str, system: str) -> list[int]:
        """Tokens of one turn, up to where the answer begins.

        Control tokens inside the texts are plain text: no role can be forged.
        """
        template = self._led if system else self._alone
        before, _, rest = template.partition(_SYSTEM) if system else ("", "", template)
        between, _, after = rest.partition(_USER)
        return [
            *self._control(before),
            *self.plain(system),
            *self._control(between),
            *self.plain(prompt),
            *self._control(after),
        ]

    def plain(self, text: str) -> list[int]:
        """Tokens of a text, with control tokens taken as text."""
        ids: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        return ids

    def _control(self, text: str) -> list[int]:
        ids: list[int] = self.backend.encode(text, add_special_tokens=False).ids
        return ids


def _render(tokenizer: Any, messages: list[dict[str, str]]) -> str:
    text: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return text


class Detokenizer:
    """Text of tokens that come one by one: pieces add up to the whole, and none ends inside a character."""

    def __init__(self, chat: Chat) -> None:
        from tokenizers.decoders import DecodeStream

        self._backend = chat.backend
        self._stream = DecodeStream(skip_special_tokens=True)

    def push(self, token: int) -> str:
        """The text that became certain: often a word, "" in the middle of a character."""
        return self._stream.step(self._backend, token) or ""
