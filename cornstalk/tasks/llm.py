"""Language models."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel

from cornstalk.task import UnitTask
from cornstalk.types import Stream


class LLM(UnitTask):
    """Answers one prompt. At temperature 0 with the likeliest tokens; else drawn with the seed of the call.

    The answer ends at `max_tokens`, before the first of the `stop` strings, or where the model ends it.
    """

    kind: ClassVar[str] = "llm"
    model: str = "smollm2-135m-instruct"

    class Out(BaseModel):
        text: Stream[str]
        tokens: int  # of the answer, counting those of a stop string

    def __call__(
        self,
        *,
        prompt: str,
        system: str = "",  # "" leaves it to the model's template
        max_tokens: int = 64,
        stop: list[str] = [],  # noqa: B006
        temperature: float = 0.0,
    ) -> Out:
        raise NotImplementedError
