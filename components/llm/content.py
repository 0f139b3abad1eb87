"""What a turn is made of before a chat template writes it: texts of users, and what stands for what they show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cornstalk.errors import EngineError
from cornstalk.tasks.llm import Place, missing


@dataclass(frozen=True, eq=False)
class Shown:
    """A picture or a video, or a frame of one that is written as a picture."""

    kind: str
    """"image" or "video": by that a template knows it."""
    mark: str
    """What the template writes for one."""
    out: str
    """What the model reads instead, with a placeholder for each span of rows."""


Content = Sequence[str | Shown]


def content_of(
    prompt: str | Sequence[Any], images: Sequence[Sequence[Shown]], videos: Sequence[Sequence[Shown]]
) -> list[str | Shown]:
    """`prompt` as it travels, each place in it taken by the next of its kind; before it those that have no place.

    Raises EngineError bad_input for a place that nothing is left for.
    """
    if why := missing(prompt, len(images), len(videos)):
        raise EngineError(why, "bad_input")
    parts = [prompt] if isinstance(prompt, str) else list(prompt)
    kinds = ["" if isinstance(part, str) else Place.model_validate(part).type for part in parts]
    given = {"image": images, "video": videos}
    left = {kind: iter(some) for kind, some in given.items()}
    placed = [[part] if not kind else next(left[kind]) for part, kind in zip(parts, kinds, strict=True)]
    first = [some for kind in given for some in left[kind]]
    content = [one for some in (*first, *placed) for one in some]
    return content if "" in kinds else [*content, ""]  # templates are made for a text
