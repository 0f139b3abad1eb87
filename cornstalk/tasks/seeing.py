"""Language models that see, in two components: an encoder looks at pictures, the model answers."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import BaseModel, Field

from cornstalk.media import ImageUpload
from cornstalk.task import CompositeTask, UnitTask
from cornstalk.tasks.llm import LLM, MAX_IMAGES, Sampling
from cornstalk.types import Stream, Tensor, Upload


class ImageEncoder(UnitTask):
    """The eyes of a multimodal model: a picture (PNG, JPEG, WebP, GIF, TIFF, BMP), or one page of it, as embeddings.

    `model`: the absolute path of a folder as transformers saves it, or its name ("owner/name") in the Hugging Face
    cache of the machines that the workers run on. Only its vision tower and projector are loaded. `adapters`: more
    models that see with the same tower, each with a projector of its own; they take little more memory.
    """

    kind: ClassVar[str] = "encoder"
    cached: ClassVar[bool] = True
    model: str
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    adapters: tuple[str, ...] = ()

    class Out(BaseModel):
        embeddings: Tensor  # for an LLM of the same model; docs/models has the shape of each family

    def __call__(self, *, image: Upload | Tensor, page: int = 0, among: int = 1, adapter: str = "") -> Out:
        """`among`: how many pictures the prompt has; some models look closer at one that is alone. `adapter`: the model
        that the embeddings are for, if it is not `model`.
        """
        raise NotImplementedError


class Sight(Sampling):
    """A question about pictures, or about none."""

    prompt: str
    images: list[ImageUpload] = Field(default=[], max_length=MAX_IMAGES)
    """They stand before the prompt, in this order."""
    system: str = ""


class MultimodalLLM(CompositeTask):
    """A model of docs/models, its eyes in workers of their own. Pictures are looked at side by side.

    A question without pictures makes no work for the eyes. `eyes`: for models that share a tower, one of which `llm` is
    the model or among the adapters.
    """

    def __init__(self, llm: LLM, eyes: ImageEncoder | None = None) -> None:
        self.llm = llm
        self.eyes = eyes or ImageEncoder(model=llm.model, dtype=llm.dtype, device=llm.device)

    def invoke(self, request: Sight) -> Stream[str]:
        among = len(request.images)
        adapter = self.llm.model if self.llm.model in self.eyes.adapters else ""
        seen = [self.eyes(image=image, among=among, adapter=adapter).embeddings for image in request.images]
        return self.llm(prompt=request.prompt, images=seen, system=request.system, **request.sampling()).text
