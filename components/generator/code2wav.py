"""Codes of speech to sound: the code2wav of Qwen3-Omni, a causal transformer and convolutions that make it finer.

A frame of codes is 1920 samples at 24 kHz. The transformer reads each frame once and remembers those that it still
looks at; the convolutions look at a bounded number of its states before a frame, and at the one after it. So a part of
the sound is cut out of a window of states, and is what the whole would have been there, but for rounding.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from components.generator.sound import Part
from components.qwen_omni import OmniFolder

FIRST: Final = 4
"""Frames of the first part of the sound: it is heard early."""
FRAMES: Final = 12
"""Frames of each other part: 0.96 s."""
_KERNEL: Final = 7
_DILATIONS: Final = (1, 3, 9)  # of the convolutions of each block


@dataclass(frozen=True)
class Window:
    """States of frames [first, last), from which the sound of frames [start, end) is cut."""

    first: int
    start: int
    end: int
    last: int
    samples: int


@dataclass(eq=False)
class Voice:
    """What the transformer remembers of one request: its cache, and the states [n, size] of the frames so far."""

    memory: tuple[Any, Any] | None = None


class Code2Wav:
    """As SoundModel. Whole it is what transformers' `generate` makes: in chunks of 300 frames, each of which loses the
    end of its sound; in parts it is the sound of all frames, of which only the last loses its end. Raises SetupError.
    """

    longest: float = math.inf

    def __init__(self, folder: OmniFolder, device: str) -> None:
        import torch
        from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

        self._config = config = folder.config.code2wav_config
        self._model, self._device = folder.part("code2wav.", Qwen3OmniMoeCode2Wav, config, torch.float32), device
        self._model.to(device)
        self.codes: int = config.codebook_size
        self.frame: tuple[int, ...] = (config.num_quantizers,)
        self.hop = math.prod((*config.upsampling_ratios, *config.upsample_rates))  # samples of a frame
        self.lost = 0  # samples at the end, for which the states of the next frame are not there
        for rate in config.upsample_rates:
            self.lost = (self.lost + 1) * rate
        self.ahead = math.ceil(self.lost / self.hop)
        self.reach = _reach(config)

    def voice(self, _speaker: str, _seed: int) -> Voice:
        return Voice()

    def whole(self, part: Part) -> Any:
        import torch

        with torch.inference_mode():
            return self._model.chunked_decode(self._tensor(part.codes)).reshape(-1).cpu()

    def window(self, index: int, told: int, ended: bool) -> Window | None:
        """As SoundModel."""
        start = 0 if index == 0 else FIRST + FRAMES * (index - 1)
        end = min(start + (FRAMES if index else FIRST), told)
        last = end + self.ahead
        if start >= told or (last > told and not ended):
            return None
        last = min(last, told)
        first = max(0, start - self.reach)
        made = (last - first) * self.hop - self.lost
        samples = min(end * self.hop, first * self.hop + made) - start * self.hop
        return Window(first, start, end, last, samples)

    def shape(self, part: Part) -> Hashable:
        w = part.window
        return (w.start - w.first, w.last - w.first, w.samples)

    def sounds(self, parts: Sequence[Part]) -> Any:
        import torch

        window = parts[0].window
        with torch.inference_mode():
            states = [self._states(part)[part.window.first : part.window.last] for part in parts]
            sound = torch.stack(states).permute(0, 2, 1)
            for finer in (*(block for blocks in self._model.upsample for block in blocks), *self._model.decoder):
                sound = finer(sound)
            cut = (window.start - window.first) * self.hop
            return sound.clamp(-1, 1)[:, 0, cut : cut + window.samples].cpu()

    def _states(self, part: Part) -> Any:
        """[n, size]: of all frames up to the end of the window, of which only new ones are computed."""
        import torch
        from transformers import DynamicCache

        voice, size = part.voice, self._config.hidden_size
        cache, known = voice.memory or (DynamicCache(config=self._config), torch.zeros(0, size, device=self._device))
        if fresh := part.codes[len(known) : part.window.last]:
            voice.memory = None  # if this step fails, the next one begins anew
            embeds = self._model.code_embedding(self._tensor(fresh) + self._model.code_offset).mean(1)
            # by position: the name of the cache differs between releases of transformers
            output = self._model.pre_transformer(None, None, None, cache, embeds)
            known = torch.cat([known, output.last_hidden_state[0]])
            voice.memory = cache, known
        return known

    def _tensor(self, codes: Sequence[Sequence[int]]) -> Any:
        """int64 [1, codebooks, n]"""
        import torch

        return torch.tensor([list(codes)], device=self._device).transpose(1, 2)


def _reach(config: Any) -> int:
    """Frames before it whose states a frame of the sound depends on."""
    samples = _KERNEL - 1  # of the last convolution
    for rate in reversed(config.upsample_rates):
        samples = math.ceil((samples + sum(_DILATIONS) * (_KERNEL - 1)) / rate)
    states = samples + _KERNEL - 1
    for ratio in reversed(config.upsampling_ratios):
        states = math.ceil((states + _KERNEL - 1) / ratio)
    return states
