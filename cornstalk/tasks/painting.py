"""Images out of text, in two components: an encoder reads the prompt, the generator draws what it says.

`model` of each task: the absolute path of a folder as diffusers saves it, or its name in the Hugging Face cache of the
machines that its workers run on. Each part loads its own weights only.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from pydantic import BaseModel, Field

from cornstalk.chance import rng
from cornstalk.task import CompositeTask, UnitTask
from cornstalk.tasks.computing import Device, Precision
from cornstalk.types import Image, Media, Stream, Tensor

Side = Annotated[int, Field(ge=64, le=4096, multiple_of=16)]
Steps = Annotated[int, Field(ge=1, le=500)]
Guidance = Annotated[float, Field(ge=0.0, le=100.0, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Previews = Annotated[int, Field(ge=0, le=16)]
Preview = Annotated[bytes, Media("image/jpeg")]

SEED_BITS: Final = 32
"""Of a seed that is drawn: few enough for a JSON number of any client."""


class Progress(BaseModel):
    """A step of the denoiser is done."""

    step: int
    of: int
    preview: Preview = b""  # what the image looks like so far, up to 256 pixels long and wide


class PromptEncoder(UnitTask):
    """The text encoder of an image or video generator. Equal prompts, as negative ones often are, are read once."""

    kind: ClassVar[str] = "encoder"
    cached: ClassVar[bool] = True
    model: str
    dtype: Precision = "auto"
    device: Device = "auto"

    class Out(BaseModel):
        embeddings: Tensor  # [rows, size]; docs/models has the shape of each family

    def __call__(self, *, prompt: str) -> Out:
        raise NotImplementedError


class ImageOptions(BaseModel):
    """How an image is made. What is out of range is refused before anything is computed."""

    width: Side | None = None
    height: Side | None = None
    """Pixels. None: what the model was trained for."""
    steps: Steps = 30
    guidance: Guidance | None = None
    """How closely the prompt is followed, and the negative one avoided; up to 1 the latter is not looked at. None: what
    diffusers takes for the model."""
    seed: Seed | None = None
    """The same seed, the same image. None: one is drawn."""
    previews: Previews = 0
    """How many steps, evenly apart, show what there is so far."""


class ImageGenerator(UnitTask):
    """Denoiser and VAE. Requests join and leave the batch between the steps of the denoiser."""

    kind: ClassVar[str] = "generator"
    model: str
    dtype: Precision = "auto"
    device: Device = "auto"

    class Out(BaseModel):
        image: Stream[Image]
        progress: Stream[list[Progress]]

    def __call__(
        self,
        *,
        prompt: Tensor,  # of a PromptEncoder of the same model
        negative: Tensor | None = None,
        width: Side | None = None,
        height: Side | None = None,
        steps: Steps = 30,
        guidance: Guidance | None = None,
        seed: Seed | None = None,  # None: that of the call
        previews: Previews = 0,
    ) -> Out:
        raise NotImplementedError


class ImageRequest(ImageOptions):
    """What is asked of an ImageGeneration."""

    prompt: str
    negative_prompt: str = ""


class GeneratedImage(BaseModel):
    image: Stream[Image]
    progress: Stream[list[Progress]] = []
    seed: int
    """By which the same request makes the same image again."""


class ImageGeneration(CompositeTask):
    """Text in, an image out, with its progress while it is made. Both prompts are read side by side."""

    def __init__(self, model: str, dtype: Precision = "auto", device: Device = "auto") -> None:
        self.encoder = PromptEncoder(model=model, dtype=dtype, device=device)
        self.generator = ImageGenerator(model=model, dtype=dtype, device=device)

    def invoke(self, request: ImageRequest) -> GeneratedImage:
        seed = rng().getrandbits(SEED_BITS) if request.seed is None else request.seed
        guided = request.guidance is None or request.guidance > 1.0
        made = self.generator(
            prompt=self.encoder(prompt=request.prompt).embeddings,
            negative=self.encoder(prompt=request.negative_prompt).embeddings if guided else None,
            width=request.width,
            height=request.height,
            steps=request.steps,
            guidance=request.guidance,
            seed=seed,
            previews=request.previews,
        )
        return GeneratedImage(image=made.image, progress=made.progress, seed=seed)
