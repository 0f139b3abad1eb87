"""Codes of speech to sound: the token2wav of Qwen2.5-Omni, a diffusion transformer and a BigVGAN vocoder.

A code is 2 frames of the spectrogram, a frame 240 samples at 24 kHz. Both halves look at bounded neighbourhoods only
(the first at whole blocks of 24 frames), so a part of the sound follows from a window of codes around it: what is cut
out of a window is what the whole would have been there, but for rounding.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from components.generator.sound import Part
from components.qwen_omni import OmniFolder, Speaker, speaker_of
from cornstalk.errors import SetupError

STEPS: Final = 10
"""Points in time of the solver; each but the last asks the transformer four times, with guidance and without."""
GUIDANCE: Final = 0.5
SWAY: Final = -1.0
FIRST_BLOCKS: Final = 1
"""Blocks of the first part of the sound: it is heard early."""
BLOCKS: Final = 4
"""Blocks of each other part: 0.96 s."""
_POST: Final = 3 + 6  # samples to each side: the last convolution, and the activation before it
_ACTIVATION: Final = 6  # filters of 12 taps up and 12 down, at twice the rate


@dataclass(frozen=True)
class Window:
    """Codes from which frames [start, end) of the sound are made.

    Of the window's frames the vocoder gets [mel_from, mel_to), and of its samples [cut, cut + samples) are kept.
    """

    first: int
    last: int  # codes [first, last)
    start: int
    end: int
    mel_from: int
    mel_to: int
    samples: int


@dataclass(frozen=True)
class Voice:
    """Who speaks, and the seed of the noise."""

    speaker: Speaker
    seed: int


class Token2Wav:
    """As SoundModel; its windows are cut out of codes. Raises SetupError."""

    frame: tuple[int, ...] = ()

    def __init__(self, folder: OmniFolder, device: str) -> None:
        import torch
        from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavModel

        config = folder.config.token2wav_config
        self._speakers, self._device = folder.speakers(), device
        model = folder.part("token2wav.", Qwen2_5OmniToken2WavModel, config, torch.float32).to(device)
        self._dit, self._vocoder = model.code2wav_dit_model, model.code2wav_bigvgan_model
        dit, vocoder = config.dit_config, config.bigvgan_config
        self.frames = dit.repeats  # of a code
        self.block, self._bins = dit.block_size, dit.mel_dim
        self.longest: float = dit.max_position_embeddings // self.frames
        self.hop = math.prod(vocoder.upsample_rates)  # samples of a frame
        self.codes = dit.num_embeds
        self._before, self._after = len(dit.look_backward_layers), len(dit.look_ahead_layers)
        self.reach = _reach(vocoder)
        if self.block % self.frames:
            raise SetupError(f"{folder.path}: blocks of {self.block} frames do not end with a code")

    def voice(self, speaker: str, seed: int) -> Voice:
        return Voice(speaker_of(self._speakers, speaker), seed)

    def whole(self, part: Part) -> Any:
        """As SoundModel, when transformers draws its noise with the seed of the voice."""
        import torch

        with torch.inference_mode():
            return self._vocoder(self._mel([part])).reshape(-1).cpu()

    def window(self, index: int, told: int, ended: bool) -> Window | None:
        """As SoundModel."""
        start = 0 if index == 0 else (FIRST_BLOCKS + BLOCKS * (index - 1)) * self.block
        total = told * self.frames
        end = min(start + (BLOCKS if index else FIRST_BLOCKS) * self.block, total)
        last = (math.ceil((end + self.reach) / self.block) + self._after) * self.block // self.frames
        if start >= total or (last > told and not ended):
            return None
        last = min(last, told)
        first_block = max(0, (start - self.reach) // self.block - self._before)
        offset = first_block * self.block
        mel_from, mel_to = max(0, start - self.reach), min(last * self.frames, end + self.reach)
        first = offset // self.frames
        samples = (end - start) * self.hop
        return Window(first, last, start - offset, end - offset, mel_from - offset, mel_to - offset, samples)

    def shape(self, part: Part) -> Hashable:
        w = part.window
        return (w.last - w.first, w.mel_from, w.mel_to, w.start, w.end, part.voice.speaker.mel.shape)

    def sounds(self, parts: Sequence[Part]) -> Any:
        """As SoundModel."""
        import torch

        window = parts[0].window
        with torch.inference_mode():
            mel = self._mel(parts)
            sound = self._vocoder(mel[:, :, window.mel_from : window.mel_to]).reshape(len(parts), -1).cpu()
            cut = (window.start - window.mel_from) * self.hop
            return sound[:, cut : cut + window.samples]

    def _noise(self, seed: int, first_code: int, frames: int) -> Any:
        """float32 [1, frames, bins]: the same for a frame whatever window it is in."""
        import torch

        before = first_code * self.frames
        drawn = torch.Generator().manual_seed(seed & (2**63 - 1))
        return torch.randn(1, before + frames, self._bins, generator=drawn)[:, before:]

    def _mel(self, parts: Sequence[Part]) -> Any:
        """The spectrogram of their windows, or of all: float32 [parts, bins, frames]"""
        import torch
        from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import RungeKutta4ODESolver

        windows, voices = [part.window for part in parts], [part.voice for part in parts]
        firsts = [window.first if window else 0 for window in windows]
        told = [
            part.codes[first : window.last if window else None]
            for part, first, window in zip(parts, firsts, windows, strict=True)
        ]
        frames = len(told[0]) * self.frames
        codes = torch.tensor(told, device=self._device)
        noise = torch.cat([self._noise(v.seed, first, frames) for v, first in zip(voices, firsts, strict=True)])
        reference = torch.cat([voice.speaker.mel for voice in voices]).to(self._device)
        condition = torch.cat([voice.speaker.condition for voice in voices]).to(self._device)
        voice = condition.unsqueeze(1).repeat(1, frames, 1)

        def slope(time: Any, state: Any) -> Any:
            both = self._dit(
                hidden_states=state,
                speaker_embedding=voice,
                condition_vector=reference,
                quantized_code=codes,
                time_step=time,
            )
            guided, free = both.chunk(2)
            return guided + (guided - free) * GUIDANCE

        times = torch.linspace(0, 1, STEPS)
        times += SWAY * (torch.cos(torch.pi / 2 * times) - 1 + times)
        solver = RungeKutta4ODESolver(function=slope, initial_value=noise.to(self._device))
        return solver.integrate(times.to(self._device))[-1].permute(0, 2, 1)


def _reach(config: Any) -> int:
    """Frames to each side that a sample of the vocoder depends on."""
    block = max(
        sum(2 * _ACTIVATION + (kernel - 1) // 2 * (dilation + 1) for dilation in dilations)
        for kernel, dilations in zip(config.resblock_kernel_sizes, config.resblock_dilation_sizes, strict=True)
    )
    samples = _POST
    for rate, kernel in zip(reversed(config.upsample_rates), reversed(config.upsample_kernel_sizes), strict=True):
        samples = math.ceil((samples + block + kernel) / rate)
    return samples + 3  # the first convolution
