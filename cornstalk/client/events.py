"""What a client gets of a request: pieces as they come, and the whole answer at the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic

from typing_extensions import TypeVar

R = TypeVar("R", default=dict[str, Any])
"""Response of an app: its model, or a dict when none was named."""
R_co = TypeVar("R_co", default=dict[str, Any], covariant=True)


@dataclass(frozen=True, slots=True)
class Chunk:
    """One piece of a stream field; the pieces of a field add up to its value."""

    field: str
    """Path in the response: "text", "parts.0.text"."""
    data: str | bytes | list[Any]
    n: int
    """Pieces of this field before this one."""
    seq: int
    """Rises over all fields of a request; a client resumes after the last one it has."""
    media_type: str = ""
    """Of bytes, such as "audio/pcm;rate=24000;channels=1"."""
    fields: tuple[str, ...] = ()
    """All fields that the piece belongs to: more than `field` if several of the response come from one output."""


@dataclass(frozen=True, slots=True)
class Answer(Generic[R_co]):
    """A request that ended well. Stream fields of `response` are whole."""

    request: str
    response: R_co
    times: dict[str, float] = field(default_factory=dict)
    """Unix seconds: accepted, ended, and what else the gateway tells."""


@dataclass(frozen=True, slots=True)
class End(Generic[R_co]):
    """The last event of a stream."""

    answer: Answer[R_co]

    @property
    def response(self) -> R_co:
        return self.answer.response
