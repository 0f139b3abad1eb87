"""Videos out of text, in two components: an encoder reads the prompt, the generator films what it says."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import BaseModel, Field

from cornstalk.chance import rng
from cornstalk.task import CompositeTask, UnitTask
from cornstalk.tasks.computing import Device, Precision
from cornstalk.tasks.painting import (
    SEED_BITS,
    Guidance,
    Progress,
    PromptEncoder,
    Seed,
    Side,
    Steps,
)
from cornstalk.types import Stream, Tensor, Video

Frames = Annotated[int, Field(ge=1, le=241)]
Rate = Annotated[int, Field(ge=1, le=60)]


class VideoOptions(BaseModel):
    """How a video is made; as ImageOptions."""

    width: Side = 832
    height: Side = 480
    frames: Frames = 81
    """Some models make 4 n + 1 of them only, and say so."""
    rate: Rate = 16
    """Frames per second."""
    steps: Steps = 50
    guidance: Guidance | None = None
    seed: Seed | None = None


class VideoGenerator(UnitTask):
    """Denoiser and VAE. Frames leave as they are decoded: H.264 in a fragmented MP4, which plays while it arrives."""

    kind: ClassVar[str] = "generator"
    model: str
    dtype: Precision = "auto"
    device: Device = "auto"

    class Out(BaseModel):
        video: Stream[Video]
        progress: Stream[list[Progress]]

    def __call__(
        self,
        *,
        prompt: Tensor,  # of a PromptEncoder of the same model
        negative: Tensor | None = None,
        width: Side = 832,
        height: Side = 480,
        frames: Frames = 81,
        rate: Rate = 16,
        steps: Steps = 50,
        guidance: Guidance | None = None,
        seed: Seed | None = None,  # None: that of the call
    ) -> Out:
        raise NotImplementedError


class VideoRequest(VideoOptions):
    """What is asked of a VideoGeneration."""

    prompt: str
    negative_prompt: str = ""


class GeneratedVideo(BaseModel):
    video: Stream[Video]
    progress: Stream[list[Progress]] = []
    seed: int
    """By which the same request makes the same video again."""


class VideoGeneration(CompositeTask):
    """Text in, a video out, with its progress while it is made. Both prompts are read side by side."""

    def __init__(self, model: str, dtype: Precision = "auto", device: Device = "auto") -> None:
        self.encoder = PromptEncoder(model=model, dtype=dtype, device=device)
        self.generator = VideoGenerator(model=model, dtype=dtype, device=device)

    def invoke(self, request: VideoRequest) -> GeneratedVideo:
        options = {name: getattr(request, name) for name in VideoOptions.model_fields}
        if request.seed is None:
            options["seed"] = rng().getrandbits(SEED_BITS)
        guided = request.guidance is None or request.guidance > 1.0
        made = self.generator(
            prompt=self.encoder(prompt=request.prompt).embeddings,
            negative=self.encoder(prompt=request.negative_prompt).embeddings if guided else None,
            **options,
        )
        return GeneratedVideo(video=made.video, progress=made.progress, seed=options["seed"])
