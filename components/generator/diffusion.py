"""Diffusion models that make several images in one step: what each family implements, and the batch of their steps."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from components.continuous import ContinuousBatch, Member, Stage
from components.diffusers_folder import DiffusersFolder
from cornstalk.errors import EngineError

MOST: Final = 8
"""Images in one step."""
ROOM: Final = 8 << 20
"""Pixels in one step: what a step takes of memory grows with them. One image is always taken."""


@dataclass(frozen=True)
class Ask:
    """One image, or a video of several frames. Texts are tensors [rows, size] on the device of the model."""

    prompt: Any
    negative: Any
    """None: without guidance."""
    width: int
    height: int
    steps: int
    guidance: float
    seed: int
    previews: int
    frames: int


@dataclass(frozen=True)
class Drawn:
    """A step of a drawing is done. What is shown with the last one is what was asked for, the rest are previews."""

    step: int
    picture: Any = None


class Drawing(Member[Drawn]):
    """An image or a video on its way out of noise, with a scheduler and a generator of random numbers of its own."""

    def __init__(
        self, ask: Ask, latents: Any, scheduler: Any, random: Any, texts: Hashable, check: Callable[[], None]
    ) -> None:
        """`texts`: what must be equal for two to go through the model together, beside the size."""
        super().__init__(check)
        self.ask, self.latents, self.scheduler, self.random = ask, latents, scheduler, random
        self.shape = (ask.width, ask.height, ask.frames, texts)
        self.times: list[Any] = list(scheduler.timesteps)
        self.step = 0  # steps done
        self.showing: Any = None  # latents that are to be decoded
        self.memory: Any = None  # of a VAE that decodes in parts
        self.previewed = {round((i + 1) * self.of / (ask.previews + 1)) for i in range(ask.previews)}

    @property
    def of(self) -> int:
        """Steps of the denoiser: of some schedulers one more than were asked for."""
        return len(self.times)

    @property
    def time(self) -> Any:
        return self.times[self.step]

    @property
    def ended(self) -> bool:
        return self.step == self.of and self.showing is None


class Diffusion(ABC):
    """Denoiser, scheduler and VAE of one model, from their own weights only. One thread at a time.

    What one image is alone is bit for bit what the pipeline of diffusers makes of it. In a step with others sums are
    rounded otherwise, and nothing else differs: no image looks at another one.
    """

    side: int
    """Pixels, of width and height, unless they are asked for otherwise."""
    guidance: float
    """Unless it is asked for otherwise."""
    text_size: int
    dtype: Any
    device: str
    draws: bool = False
    """Whether steps of the scheduler take a generator of random numbers."""

    @abstractmethod
    def __init__(self, folder: DiffusersFolder, dtype: Any, device: str) -> None:
        """Raises SetupError."""

    @abstractmethod
    def begin(self, ask: Ask, check: Callable[[], None]) -> Drawing:
        """Noise, drawn on the CPU, so that it is the same for every device. Raises EngineError bad_input."""

    @abstractmethod
    def noise(self, drawings: Sequence[Drawing]) -> list[Any]:
        """What the denoiser finds in each of them, guided. All are of one shape."""

    @abstractmethod
    def picture(self, drawing: Drawing, latents: Any) -> tuple[Any, Any]:
        """An image (PIL, RGB), or some frames (uint8 [n, height, width, 3]); and the latents of those that follow."""

    def advance(self, drawing: Drawing, noise: Any) -> Any:
        """One step of its scheduler; what the image would be if no noise were left, as far as that can be told."""
        more = {"generator": drawing.random} if self.draws else {}
        made = drawing.scheduler.step(noise, drawing.time, drawing.latents, **more)
        drawing.latents = made.prev_sample
        drawing.step += 1
        return getattr(made, "pred_original_sample", None)

    def _times(self, scheduler: Any, **options: Any) -> Any:
        """A scheduler for one drawing. Raises EngineError bad_input for steps that it cannot make."""
        own = copy.deepcopy(scheduler)
        try:
            own.set_timesteps(device=self.device, **options)
        except ValueError as error:
            raise EngineError(f"steps: {error}", "bad_input") from error
        return own


def asked_twice(
    drawings: Sequence[Drawing], look: Callable[[Sequence[Drawing], list[Any]], Sequence[Any]]
) -> list[tuple[Drawing, Any, Any]]:
    """What `look` finds in each with its prompt, and with what it is to avoid: None where there is nothing."""
    against = [drawing for drawing in drawings if drawing.ask.negative is not None]
    seen = look(drawings, [drawing.ask.prompt for drawing in drawings])
    free = iter(look(against, [drawing.ask.negative for drawing in against]) if against else ())
    return [(d, noise, None if d.ask.negative is None else next(free)) for d, noise in zip(drawings, seen, strict=True)]


def unscaled(latents: Any, vae: Any) -> Any:
    """Latents [1, channels, frames, height, width] as a VAE with a mean and a deviation for each channel takes them."""
    import torch

    mean, deviation = (
        torch.tensor(values).view(1, vae.config.z_dim, 1, 1, 1).to(latents.device, vae.dtype)
        for values in (vae.config.latents_mean, vae.config.latents_std)
    )
    return latents.to(vae.dtype) / (1.0 / deviation) + mean


class Drawings(ContinuousBatch[Drawing, Drawn]):
    """Steps of the denoiser with all images of one size, and between them the decoding of one at a time."""

    def __init__(self, model: Diffusion) -> None:
        super().__init__("diffusion", MOST)
        self._model = model
        self._showing = Stage(self._decode, 1)

    def stage(self, member: Drawing) -> Stage[Drawing, Drawn]:
        if member.showing is not None:
            return self._showing
        most = max(1, ROOM // (member.ask.width * member.ask.height * member.ask.frames))
        return Stage(self._denoise, min(MOST, most), member.shape)

    def _denoise(self, drawings: list[Drawing]) -> list[list[Drawn]]:
        import torch

        with torch.inference_mode():
            for drawing, noise in zip(drawings, self._model.noise(drawings), strict=True):
                clear = self._model.advance(drawing, noise)
                if drawing.step == drawing.of:
                    drawing.showing = drawing.latents
                elif drawing.step in drawing.previewed:
                    drawing.showing = drawing.latents if clear is None else clear
        return [[Drawn(drawing.step)] if drawing.showing is None else [] for drawing in drawings]

    def _decode(self, drawings: list[Drawing]) -> list[list[Drawn]]:
        import torch

        (drawing,) = drawings
        with torch.inference_mode():
            picture, drawing.showing = self._model.picture(drawing, drawing.showing)
        return [[Drawn(drawing.step, picture)]]
