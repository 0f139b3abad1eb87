"""Apps of null tasks for faults, and what each must answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from components.null import digest, stream_of, tensor_after, tensor_of
from cornstalk.tasks.null import Null, NullStream, NullTensor
from tests.e2e.apps import digest_of

FAULT_APPS: Final = Path(__file__).parent


def turns(text: str) -> dict[str, str]:
    """The response of turns.py."""
    value = Null(name="value")
    first = digest_of(value, text=text)
    talk = digest_of(NullStream(name="talker"), text=first)
    return {"mark": digest_of(value, text=first), "text": stream_of(talk, 4)}


def live(text: str) -> dict[str, str]:
    """The streams that the app `live` answers to a text that was streamed in."""
    return {"back": text, "echo": stream_of(digest_of(NullStream(name="live-echo"), text="t"), 0, text)}


def guess(text: str) -> dict[str, str]:
    """The response of guess.py."""
    return {"text": stream_of(digest_of(NullStream(name="talker"), text=text), 2)}


def lineage(text: str, pieces: int = 20) -> dict[str, str]:
    """The response of lineage.py."""
    maker = NullTensor(name="maker")
    tensor = tensor_of(digest_of(maker, text=text, nbytes=50_000), 50_000)
    talk = stream_of(digest_of(NullStream(name="talker"), text=text, tensors=[tensor]), pieces)
    return {"text": talk, "echo": stream_of(digest_of(NullStream(name="echo"), text="e"), 0, talk)}


def rows(text: str, pieces: int = 12) -> dict[str, list[str]]:
    """The response of rows.py."""
    sources: list[Any] = [None] * pieces
    digests = []
    for name, seed, nbytes in (("rows", text, 20_000), ("small", "s", 100), ("last", "l", 9_000)):
        sources = [tensor_after(seed, index, source, nbytes) for index, source in enumerate(sources)]
        digests.append(digest(name, {"made": sources}))
    return {"digests": digests}
