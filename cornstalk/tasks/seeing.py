"""Language models that see, in two components: an encoder looks at pictures and videos, the model answers."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Self

from pydantic import BaseModel, Field, model_validator

from cornstalk.media import ImageUpload, VideoUpload
from cornstalk.task import CompositeTask, UnitTask
from cornstalk.tasks.computing import Device, Precision
from cornstalk.tasks.llm import LLM, MAX_IMAGES, MAX_VIDEOS, Prompt, Sampling, missing
from cornstalk.types import Stream, Tensor, Upload

MAX_FRAMES: Final = 64
"""Of one video."""

Fps = Annotated[float, Field(gt=0.0, le=60.0, allow_inf_nan=False)]
Frames = Annotated[int, Field(ge=1, le=MAX_FRAMES)]


class ImageEncoder(UnitTask):
    """The eyes of a multimodal model: a picture (PNG, JPEG, WebP, GIF, TIFF, BMP), or one page of it, as embeddings; or
    a video (MP4, MOV, WebM, Matroska, OGG, AVI) of up to 10 minutes.

    `model`: the absolute path of a folder as transformers saves it, or its name ("owner/name") in the Hugging Face
    cache of the machines that the workers run on. Only its vision tower and projector are loaded. `adapters`: more
    models that see with the same tower, each with a projector of its own; they take little more memory.
    """

    kind: ClassVar[str] = "encoder"
    cached: ClassVar[bool] = True
    model: str
    dtype: Precision = "auto"
    device: Device = "auto"
    adapters: tuple[str, ...] = ()

    class Out(BaseModel):
        embeddings: Tensor  # for an LLM of the same model; docs/models has the shape of each family
        times: list[float]  # of a video: seconds from its first frame to each step of the embeddings along time

    def __call__(
        self,
        *,
        image: Upload | Tensor | None = None,
        page: int = 0,
        among: int = 1,
        video: Upload | None = None,
        fps: Fps = 2.0,
        frames: Frames = 16,
        side: Annotated[int, Field(ge=0)] = 448,
        adapter: str = "",
    ) -> Out:
        """Either an image or a video. `among`: how many pictures the prompt has; some models look closer at one that is
        alone. `fps`, `frames`: how many frames of a second, and how many at most; which ones, is up to the model's
        family. `side`: pixels that a frame has at most, high and wide; 0 leaves them all. `adapter`: the model that the
        embeddings are for, if it is not `model`.
        """
        raise NotImplementedError


class Sight(Sampling):
    """A question about pictures and videos, or about none."""

    prompt: Prompt
    """A text, or texts and places in their order: {"type": "image"} stands for the next picture, {"type": "video"} for
    the next video. Those that have no place stand before all of it, pictures first.
    """
    images: list[ImageUpload] = Field(default=[], max_length=MAX_IMAGES)
    videos: list[VideoUpload] = Field(default=[], max_length=MAX_VIDEOS)
    fps: Fps = 2.0
    frames: Frames = 16
    """How many frames of a second of video, and of one video at most."""
    system: str = ""

    @model_validator(mode="after")
    def _places_are_taken(self) -> Self:
        if why := missing(self.prompt, len(self.images), len(self.videos)):
            raise ValueError(why)
        return self


class MultimodalLLM(CompositeTask):
    """A model of docs/models, its eyes in workers of their own. Pictures and videos are looked at side by side.

    A question without any makes no work for the eyes. `eyes`: for models that share a tower, one of which `llm` is
    the model or among the adapters.
    """

    def __init__(self, llm: LLM, eyes: ImageEncoder | None = None) -> None:
        self.llm = llm
        self.eyes = eyes or ImageEncoder(model=llm.model, dtype=llm.dtype, device=llm.device)

    def invoke(self, request: Sight) -> Stream[str]:
        among = len(request.images)
        adapter = self.llm.model if self.llm.model in self.eyes.adapters else ""
        seen = [self.eyes(image=image, among=among, adapter=adapter).embeddings for image in request.images]
        watched = [
            self.eyes(video=video, fps=request.fps, frames=request.frames, adapter=adapter) for video in request.videos
        ]
        return self.llm(
            prompt=request.prompt,
            images=seen,
            videos=[one.embeddings for one in watched],
            times=[one.times for one in watched],
            system=request.system,
            **request.sampling(),
        ).text
