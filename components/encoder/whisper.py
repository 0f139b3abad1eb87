"""The encoder half of Whisper on CTranslate2: audio -> hidden states.

CTranslate2 loads the decoder's weights too (75 MB for both halves of tiny.en, 8 bit); only the encoder's are read.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from components import models
from components.engine import Call
from components.fingerprint import fingerprint
from components.loaded import Loaded
from components.media.audio import decode_audio
from cornstalk.tasks.hearing import AudioEncoder

RATE: Final = 16_000
"""Samples per second that Whisper hears."""
MAX_SECONDS: Final = 30
_FRAMES: Final = 3000  # of 10 ms: Whisper's window


class WhisperEncoder(Loaded[AudioEncoder]):
    """states: float32 [1, 1500, 384]. Files are decoded side by side; the model takes one at a time."""

    slots = threads = 2
    identity = ""
    _model: Any

    def load(self) -> None:
        import av  # noqa: F401  what decode_audio() needs is imported before the first item
        import soundfile  # noqa: F401
        from faster_whisper import WhisperModel

        folder = models.whisper(self.task.model)
        self.identity = fingerprint([folder])
        self._model = WhisperModel(str(folder), device="cpu", compute_type="int8", cpu_threads=1, local_files_only=True)

    async def run(self, call: Call) -> dict[str, Any]:
        features = await self.off_loop(self._features, call.inputs["audio"])
        call.check()
        states = await self.off_loop(self._encode, features)
        await call.tensor("states", states)
        return {}

    def _features(self, audio: bytes) -> np.ndarray[Any, Any]:
        """Log-mel spectrogram, float32 [80, 3000]; silence is what follows the audio."""
        mel = self._model.feature_extractor(decode_audio(audio, rate=RATE, seconds=MAX_SECONDS))[:, :_FRAMES]
        return np.pad(mel, ((0, 0), (0, _FRAMES - mel.shape[1])))

    def _encode(self, features: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        with self.step():
            return np.asarray(self._model.encode(features))
