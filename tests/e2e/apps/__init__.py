"""Apps of null tasks, and what each must answer: computed here by plain functions of the input."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from components.null import digest, stream_of, tensor_of
from cornstalk.task import UnitTask
from cornstalk.tasks.null import Null, NullCached, NullStream, NullTensor

APPS: Final = Path(__file__).parent


def digest_of(task: UnitTask, **inputs: Any) -> str:
    """What a null task answers to these inputs and its defaults."""
    name: str = task.name  # type: ignore[attr-defined]
    return digest(name, {**type(task).defaults, **inputs})


def one(text: str, pieces: int = 2) -> dict[str, str]:
    """The response of one.py."""
    talk = digest_of(NullStream(name="talker"), text=text)
    return {"digest": digest_of(Null(name="value"), text=text), "text": stream_of(talk, pieces)}


def chain(text: str, nbytes: int = 100_000, pieces: int = 5) -> dict[str, str]:
    """The response of chain.py."""
    mark = digest_of(Null(name="head"), text=text)
    maker = NullTensor(name="maker")
    tensors = [tensor_of(digest_of(maker, text=t, nbytes=nbytes), nbytes) for t in (mark, text)]
    joined = digest_of(Null(name="join"), text=mark, tensors=tensors)
    talk = stream_of(digest_of(NullStream(name="talker"), text=joined), pieces)
    return {"joined": joined, "text": talk, "echo": stream_of(digest_of(NullStream(name="echo"), text="e"), 0, talk)}


def looking(text: str, file: bytes, nbytes: int = 50_000) -> dict[str, str]:
    """The response of looking.py."""
    seen = digest_of(NullCached(name="looking-eye"), upload=file, nbytes=nbytes)
    return {"seen": seen, "read": digest_of(Null(name="looking-mind"), text=text, tensors=[tensor_of(seen, nbytes)])}


def live_answer(text: str, title: str = "t", look: bool = False) -> dict[str, str]:
    """The response of live.py to a text that was streamed in."""
    echo = stream_of(digest_of(NullStream(name="live-echo"), text=title), 0, text)
    looked = look and text.startswith("look")
    return {"echo": echo, "back": text, "whole": digest_of(Null(name="live-value"), text=text) if looked else ""}


def talk(text: str) -> dict[str, str]:
    """What served_live.py makes of a text: an echo, and an echo of the echo."""
    echo = NullStream(name="sl-echo")
    first = stream_of(digest_of(echo, text="first"), 0, text)
    return {"first": first, "text": stream_of(digest_of(echo, text="second"), 0, first)}


def mixed(text: str, sound: bytes | None = None, files: Sequence[bytes] = (), **plain: Any) -> dict[str, Any]:
    """The response of mixed.py."""
    texts = [json.dumps(plain.get(name, default)) for name, default in _PLAIN.items()]
    value = Null(name="value")
    whole = digest_of(value, text=text, texts=texts, upload=sound)
    return {"digest": whole, "files": [digest_of(value, upload=f) for f in files]}


_PLAIN: Final[dict[str, Any]] = {"count": 0, "ratio": 0.0, "loud": False, "extra": None}


def large(
    text: str, items: Sequence[str] = (), repeat: int = 16_000, pieces: int = 20_000, calls: int = 1, words: int = 100
) -> dict[str, Any]:
    """The response of large.py."""
    value, other = Null(name="value"), Null(name="other")
    long = digest_of(value, text=text) * repeat
    second = digest_of(other, text=text, texts=list(items))
    talk = stream_of(digest_of(NullStream(name="talker"), text=second), pieces)
    changed = long[::-1]
    digests = [
        second,
        digest_of(value, text=talk),
        digest_of(other, texts=[long, second, text]),
        digest_of(other, text=changed, texts=[changed, talk[:40]]),
        digest_of(other, texts=[digest_of(value, text=f"part {i}") * words for i in range(20)]),
        *(digest_of(value, text=f"{i}" * 1000) for i in range(calls)),
    ]
    return {"long": long, "talk": talk, "changed": changed, "digests": digests}
