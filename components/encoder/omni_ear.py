"""The audio encoder of a Qwen-Omni: a file of audio in, rows for its thinker out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from components import models
from components.engine import Call
from components.fingerprint import fingerprint
from components.halves import device_of, dtype_of
from components.loaded import Batched
from components.media.audio import decode_audio
from components.qwen_omni import OmniFolder
from components.windowed import WindowedBatch
from cornstalk.errors import EngineError, SetupError
from cornstalk.tasks.omni import OmniEar

_SHORTEST: Final = 4
"""Frames of 10 ms that make a row."""
_PADDING: Final = {"qwen2_5_omni": "max_length", "qwen3_omni_moe": "longest"}
"""How the processor of each family fills a sound up before it looks at its frequencies: the last frame tells."""


class OmniEarEngine(Batched[OmniEar, WindowedBatch[Any, Any]]):
    """rows: [n, size] of `dtype`, 25 a second, of Qwen3-Omni 13. Files are decoded side by side; sounds of one length
    share a step.
    """

    slots = 8
    threads = 2
    identity = ""
    _tower: Any
    _extractor: Any
    _padding: str

    def load(self) -> None:
        import av  # noqa: F401  what decode_audio() needs is imported before the first item
        import soundfile  # noqa: F401
        import torch
        from transformers import WhisperFeatureExtractor

        torch.set_num_threads(1)
        folder = OmniFolder(models.language_model(self.task.model))
        self.identity = fingerprint([folder.path])
        try:
            self._extractor = WhisperFeatureExtractor.from_pretrained(folder.path, local_files_only=True)
        except (OSError, ValueError, TypeError) as error:
            raise SetupError(f"{folder.path} does not say how audio is prepared: {error}") from error
        self._padding = _PADDING[folder.family]
        config, device = folder.config.thinker_config.audio_config, device_of(self.task.device)
        kind, dtype = _tower_of(folder.family), dtype_of(self.task.dtype, device)
        self._tower = folder.part("thinker.audio_tower.", kind, config, dtype).to(device)
        self.batch = WindowedBatch("ear", self._rows, self.slots)

    async def run(self, call: Call) -> dict[str, Any]:
        features = await self.off_loop(self._features, call.inputs["audio"])
        call.check()
        await call.tensor("rows", await self.batch.do(features, features.shape, call.check))
        return {}

    def _features(self, audio: bytes) -> np.ndarray[Any, Any]:
        """Log-mel spectrogram, float32 [bins, frames of 10 ms]. Raises EngineError."""
        rate, seconds = self._extractor.sampling_rate, self._extractor.chunk_length
        samples = decode_audio(audio, rate=rate, seconds=seconds)
        heard = self._extractor(
            samples, sampling_rate=rate, padding=self._padding, return_attention_mask=True, return_tensors="np"
        )
        features: np.ndarray[Any, Any] = heard["input_features"][0][:, heard["attention_mask"][0].astype(bool)]
        if features.shape[1] < _SHORTEST:
            raise EngineError(f"{len(samples) / rate:.3f} s of audio are too short to be heard", "bad_audio")
        return features

    def _rows(self, sounds: Sequence[np.ndarray[Any, Any]]) -> list[Any]:
        import torch

        device = self._tower.device
        lengths = torch.tensor([sound.shape[1] for sound in sounds], device=device)
        with torch.inference_mode():
            features = torch.from_numpy(np.concatenate(sounds, axis=1)).to(device, self._tower.dtype)
            rows = self._tower(features, feature_lens=lengths).last_hidden_state.cpu()
        return list(rows.split(rows.shape[0] // len(sounds)))


def _tower_of(family: str) -> Any:
    if family == "qwen3_omni_moe":
        from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeAudioEncoder

        return Qwen3OmniMoeAudioEncoder
    from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniAudioEncoder

    return Qwen2_5OmniAudioEncoder
