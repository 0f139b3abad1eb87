"""Texts as vectors that lie near each other where the texts mean the same."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from pydantic import BaseModel, Field

from cornstalk.task import CompositeTask, UnitTask
from cornstalk.tasks.computing import Device, Precision

MAX_TEXTS: Final = 256
"""Of one request."""


class TextEncoder(UnitTask):
    """One text as a vector. Equal texts are computed once.

    `model`: the absolute path of a folder as sentence-transformers saves it (any encoder or decoder of transformers,
    with its pooling), or its name ("owner/name") in the Hugging Face cache of the machines that the workers run on.
    """

    kind: ClassVar[str] = "encoder"
    cached: ClassVar[bool] = True
    model: str
    dtype: Precision = "auto"
    device: Device = "auto"

    class Out(BaseModel):
        vector: list[float]
        tokens: int

    def __call__(self, *, text: str, prompt: str = "") -> Out:
        """`prompt`: the name of one of the model's own prompts ("query", "passage", ...), put before the text."""
        raise NotImplementedError


class Texts(BaseModel):
    """What is to be embedded; `prompt` as for TextEncoder."""

    texts: Annotated[list[str], Field(min_length=1, max_length=MAX_TEXTS)]
    prompt: str = ""


class Embedding(CompositeTask):
    """Vectors of several texts, in their order, computed side by side."""

    def __init__(self, encoder: TextEncoder) -> None:
        self.encoder = encoder

    def invoke(self, request: Texts) -> list[list[float]]:
        return [self.encoder(text=text, prompt=request.prompt).vector for text in request.texts]
