"""Text to tokens and back: the chat template, and pieces of text that end between characters."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from components.llm.content import Content, Shown
from cornstalk.errors import EngineError, SetupError

Tool = Mapping[str, Any]
"""As transformers takes it: {"type": "function", "function": {"name", "description", "parameters": a JSON schema}}."""
_SYSTEM: Final = "\ufdd0"  # noncharacters: no template holds them
_USER: Final = "\ufdd1"
_SPACED: Final = f" {_USER} "
"""By it we see whether a template trims what users say."""
_TEMPLATES: Final = "chat_template.json"
"""Where older multimodal folders have their template: beside the tokenizer, which does not know of it."""


class Chat:
    """Tokenizer and chat template of one model. Loads in 1 s; `prompt` is safe from any thread.

    A model without a template goes on with the prompt as it is. `sees`: its template takes pictures beside texts.
    Raises SetupError for a folder without a tokenizer.
    """

    def __init__(self, folder: Path, sees: bool = False) -> None:
        from tokenizers import Tokenizer
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            described = tokenizer.backend_tokenizer.to_str()
        except (OSError, ValueError, KeyError, ImportError, AttributeError) as error:
            raise SetupError(f"{folder} holds no tokenizer that can be loaded: {error}") from error
        self.backend = Tokenizer.from_str(described)
        if self.backend.get_vocab_size(with_added_tokens=False) < 2:  # transformers makes an empty one of some families
            raise SetupError(f"{folder} holds no tokenizer: its vocabulary is missing")
        self._plain = Tokenizer.from_str(described)
        self._plain.encode_special_tokens = True
        self.end_ids = frozenset(_ends(tokenizer, folder))
        if tokenizer.chat_template is None and (folder / _TEMPLATES).is_file():
            tokenizer.chat_template = json.loads((folder / _TEMPLATES).read_bytes())["chat_template"]
        self.tokenizer, self._sees = tokenizer, sees
        self._alone = self._rendered([""])

    def prompt(self, prompt: str, system: str, sounds: Sequence[int] = (), tools: Sequence[Tool] = ()) -> list[int]:
        """As `turn`, of a text alone. The tokens of `sounds` stand before it."""
        return self._tokens(self._alone if not tools else self._equipped([""], tools), [prompt], system, sounds)

    def turn(self, content: Content, system: str, tools: Sequence[Tool] = ()) -> tuple[list[int], list[Shown]]:
        """Tokens of one turn, up to where the answer begins, and what is shown in it in the order of its placeholders:
        templates may have an order of their own.

        Control tokens inside the texts are plain text: no role can be forged, and no picture. Raises EngineError
        bad_input for tools that hold one, and for what the template has no place for.
        """
        texts = [part for part in content if isinstance(part, str)]
        shown = [part for part in content if isinstance(part, Shown)]
        if not shown and (len(texts) == 1 or not self._sees):
            return self.prompt("".join(texts), system, tools=tools), []
        rendered = self._equipped(content, tools) if tools else self._rendered(content)
        written: list[Shown] = []
        left = {mark: iter([one for one in shown if one.mark == mark]) for mark in {one.mark for one in shown}}

        def put(mark: re.Match[str]) -> str:
            if one := next(left[mark[0]], None):
                written.append(one)
            return one.out if one else ""

        template = rendered[bool(system)]
        if shown:
            template = re.sub("|".join(map(re.escape, left)), put, template)
        if len(written) != len(shown):
            raise EngineError(
                "the chat template of this model has no place for so many pictures or videos", "bad_input"
            )
        return self._tokens((template, template), texts, system), written

    def _tokens(
        self, rendered: tuple[str, str], texts: Sequence[str], system: str, sounds: Sequence[int] = ()
    ) -> list[int]:
        before, _, rest = rendered[1].partition(_SYSTEM) if system else ("", "", rendered[0])
        trims = rest.count(_SPACED) < len(texts)
        between, *after = rest.replace(_SPACED, _USER).split(_USER)
        if len(after) != len(texts):
            raise EngineError("the chat template of this model has no place for so many texts", "bad_input")
        tokens = [*self._control(before), *self.plain(system), *self._control(between), *sounds]
        for text, end in zip(texts, after, strict=True):
            tokens += [*self.plain(text.strip() if trims else text), *self._control(end)]
        return tokens

    def plain(self, text: str) -> list[int]:
        """Tokens of a text, with control tokens taken as text."""
        ids: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        return ids

    def text(self, token: int) -> str:
        """Of one token alone, also of a control token."""
        text: str = self.backend.decode([token], skip_special_tokens=False)
        return text

    def _control(self, text: str) -> list[int]:
        ids: list[int] = self.backend.encode(text, add_special_tokens=False).ids
        return ids

    def _equipped(self, content: Content, tools: Sequence[Tool]) -> tuple[str, str]:
        import jinja2

        said = json.dumps(tools, ensure_ascii=False)
        control = (token.content for token in self.tokenizer.added_tokens_decoder.values() if token.special)
        if forged := next((token for token in (*control, _SYSTEM, _USER) if token in said), None):
            raise EngineError(f"tools: {forged!r} is a control token of this model", "bad_input")
        try:
            rendered = self._rendered(content, tools)
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise EngineError(
                f"tools: the chat template of this model cannot write them: {error}", "bad_input"
            ) from error
        if rendered == self._rendered(content):
            raise EngineError("tools: the chat template of this model has no place for them", "bad_input")
        return rendered

    def _rendered(self, content: Content, tools: Sequence[Tool] = ()) -> tuple[str, str]:
        """The template of a turn, without and with a system text. Some have no place for that: there it stands before
        the user's.
        """
        import jinja2

        user = self._message("user", [part if isinstance(part, Shown) else _SPACED for part in content])
        alone = self._template([user], tools)
        try:
            led = self._template([self._message("system", [_SYSTEM]), user], tools)
        except jinja2.TemplateError:
            led = ""
        return alone, led if led.find(_SYSTEM) >= 0 else _before(alone, f"{_SYSTEM}\n\n")

    def _message(self, role: str, content: Content) -> dict[str, Any]:
        if not self._sees:
            return {"role": role, "content": "".join(map(str, content))}
        parts = [
            {"type": part.kind, "mark": part.mark} if isinstance(part, Shown) else {"type": "text", "text": part}
            for part in content
        ]
        return {"role": role, "content": parts}

    def _template(self, messages: list[dict[str, Any]], tools: Sequence[Tool]) -> str:
        tokenizer = self.tokenizer
        if tokenizer.chat_template is None:
            begin = tokenizer.bos_token if self._begins(tokenizer) else ""
            return begin + "\n\n".join(_plainly(message["content"]) for message in messages)
        text: str = tokenizer.apply_chat_template(
            messages, tools=list(tools) or None, tokenize=False, add_generation_prompt=True
        )
        return text

    def _begins(self, tokenizer: Any) -> bool:
        """Whether the model was taught that a text begins with a token of its own."""
        ids: list[int] = self.backend.encode("", add_special_tokens=True).ids
        return tokenizer.bos_token_id is not None and ids[:1] == [tokenizer.bos_token_id]


def _before(rendered: str, text: str) -> str:
    """`text` put before the first text of the user."""
    first = _SPACED if _SPACED in rendered else _USER
    return rendered.replace(first, text + first, 1)


def _plainly(content: str | list[dict[str, Any]]) -> str:
    return content if isinstance(content, str) else "".join(part.get("text") or part["mark"] for part in content)


def _ends(tokenizer: Any, folder: Path) -> set[int]:
    """Tokens that end an answer: chat models have one for the turn beside that of the text."""
    from transformers import GenerationConfig

    found = {tokenizer.eos_token_id} - {None}
    if (folder / "generation_config.json").is_file():
        try:
            more = GenerationConfig.from_pretrained(folder, local_files_only=True).eos_token_id
        except (OSError, ValueError) as error:
            raise SetupError(f"{folder} does not say where an answer ends: {error}") from error
        found |= set(more) if isinstance(more, list) else {more} - {None}
    return found


class Detokenizer:
    """Text of tokens that come one by one: pieces add up to the whole, and none ends inside a character.

    `control`: control tokens are text too, as parsers of tool calls want it.
    """

    def __init__(self, chat: Chat, control: bool = False) -> None:
        from tokenizers.decoders import DecodeStream

        self._backend = chat.backend
        self._stream = DecodeStream(skip_special_tokens=not control)

    def push(self, token: int) -> str:
        """The text that became certain: often a word, "" in the middle of a character."""
        return self._stream.step(self._backend, token) or ""
