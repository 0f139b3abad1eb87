"""What the thinker of each family of Qwen-Omni tells its talker: which hidden states, and what stands around them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, Protocol

from components.llm.prompt import Prompt
from components.qwen_omni import OmniFolder, speaker_of
from cornstalk.errors import EngineError, SetupError


class Embeddings(Protocol):
    """Of a thinker, wherever its weights are."""

    def embeddings(self, tokens: Sequence[int]) -> Any:
        """[n, size]: what the model reads for each token."""


class TalkerEdge(ABC):
    """Made of a thinker that hears with `taps`: 0, and one more. Raises SetupError for a folder without voices."""

    end: Sequence[Any] = ()
    """What follows the last row of a reply that has some."""

    @staticmethod
    @abstractmethod
    def taps(config: Any) -> tuple[int, int]:
        """Of a model with this configuration."""

    @abstractmethod
    def __init__(self, folder: OmniFolder, model: Embeddings) -> None: ...

    def check(self, tokens: Sequence[int]) -> None:
        """Raises SetupError for a prompt, as the model's template writes it, of which `begin` could make nothing."""
        return

    @abstractmethod
    def voice(self, speaker: str) -> Any:
        """By which `begin` knows a speaker. Raises EngineError bad_input for one that is none."""

    @abstractmethod
    def rows(self, states: Any, media: Sequence[int]) -> Any:
        """[n, size] of n tokens, of which `media` are the places of media. `states` [2, n, size]."""

    @abstractmethod
    def begin(self, prompt: Prompt, rows: Any, voice: Any) -> list[Any]:
        """The tensors that tell the prompt. `rows` [prompt, size]."""


class Qwen25Edge(TalkerEdge):
    """All tokens of the prompt, by the sum of embedding and last hidden state; media by the latter alone. Before and
    after the reply stand embeddings of tokens that begin and end it.
    """

    @staticmethod
    def taps(config: Any) -> tuple[int, int]:
        return 0, -1

    def __init__(self, folder: OmniFolder, model: Embeddings) -> None:
        self._speakers, self._model = folder.speakers(), model
        talker = folder.config.talker_config
        self.end = [model.embeddings((talker.tts_text_end_token_id, talker.tts_text_pad_token_id)).cpu()]

    def voice(self, speaker: str) -> Any:
        return speaker_of(self._speakers, speaker).bos_token

    def rows(self, states: Any, media: Sequence[int]) -> Any:
        rows = states[1] + states[0]
        rows[media] = states[1][media]
        return rows

    def begin(self, prompt: Prompt, rows: Any, voice: Any) -> list[Any]:
        import torch

        return [torch.cat([rows, self._model.embeddings((voice,)).cpu()])]


OPENING: Final = 3
"""Tokens that begin an answer of Qwen3-Omni: <|im_start|>, the role, a new line."""


class Qwen3Edge(TalkerEdge):
    """The turns of users and the opening of the answer, by their embeddings; media by a hidden state of a layer within.

    Four tensors: rows [n + 3, size], the last of which are embeddings of tokens for the begin, the end and after it;
    which of the n are media, uint8 [n]; their positions, float32 [3, n]; the code of the voice, int32 [1]. What a
    template puts after the opening follows as the first row of the reply.
    """

    @staticmethod
    def taps(config: Any) -> tuple[int, int]:
        return 0, config.talker_config.accept_hidden_layer

    def __init__(self, folder: OmniFolder, model: Embeddings) -> None:
        self._folder = folder.path
        self._config = config = folder.config
        spoken = config.enable_audio_output
        self._voices: dict[str, int] = (spoken and config.talker_config.speaker_id) or {}
        self._marks = model.embeddings(
            (config.tts_bos_token_id, config.tts_eos_token_id, config.tts_pad_token_id)
        ).cpu()

    def check(self, tokens: Sequence[int]) -> None:
        starts, users = self._turns(tokens)
        if self._voices and not (users and len(tokens) >= starts[-1] + OPENING):
            raise SetupError(
                f"{self._folder}: its chat template does not write turns of users and the opening of an answer as "
                "<|im_start|>, a role and a new line, by which its talker knows them"
            )

    def voice(self, speaker: str) -> Any:
        """Whatever its case."""
        if (code := self._voices.get(str(speaker).lower())) is None:
            known = ", ".join(sorted(self._voices)) or "none"
            raise EngineError(f"no speaker {str(speaker)[:40]!r}; this model has {known}", "bad_input")
        return code

    def rows(self, states: Any, media: Sequence[int]) -> Any:
        rows = states[0].clone()
        rows[media] = states[1][media]
        return rows

    def begin(self, prompt: Prompt, rows: Any, voice: Any) -> list[Any]:
        import torch

        read, opened = self._read(prompt.tokens)
        media = torch.zeros(len(prompt), dtype=torch.uint8)
        media[prompt.places(0, len(prompt))[0]] = 1
        positions = torch.arange(len(prompt)).expand(3, -1) if prompt.positions is None else prompt.positions
        positions = (positions[:, read] - positions[:, read[:1]]).float()
        told = [torch.cat([rows[read], self._marks]), media[read], positions, torch.tensor([voice], dtype=torch.int32)]
        return told if opened == len(prompt) else [*told, rows[opened:]]

    def _read(self, tokens: Sequence[int]) -> tuple[list[int], int]:
        """The places that the talker reads, one after the other, and where the opening of the answer ends."""
        starts, users = self._turns(tokens)
        opened = starts[-1] + OPENING
        return [*(at for turn in users for at in turn), *range(starts[-1], opened)], opened

    def _turns(self, tokens: Sequence[int]) -> tuple[list[int], list[range]]:
        """Where turns begin, and those of users."""
        config = self._config
        starts = [at for at, token in enumerate(tokens) if token == config.im_start_token_id]
        return starts, [
            range(start, end) for start, end in pairwise(starts) if tokens[start + 1] == config.user_token_id
        ]


EDGES: Final[dict[str, type[TalkerEdge]]] = {"qwen2_5_omni": Qwen25Edge, "qwen3_omni_moe": Qwen3Edge}
"""By the model type of transformers."""
