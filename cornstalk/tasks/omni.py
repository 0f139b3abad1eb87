"""Qwen2.5-Omni in parts that scale one by one: it hears, thinks, and says aloud what it thinks while it does.

`model` of each task: the absolute path of a Hugging Face folder, or its name in the Hugging Face cache of the machines
that its workers run on. Each part loads its own weights only.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, Field

from cornstalk.media import AudioUpload, ImageUpload, VideoUpload
from cornstalk.task import CompositeTask, UnitTask
from cornstalk.tasks.computing import Device, LanguageModel, Precision
from cornstalk.tasks.llm import MAX_IMAGES, MAX_VIDEOS
from cornstalk.tasks.seeing import ImageEncoder
from cornstalk.types import Audio, Stream, Tensor, Upload


class OmniEar(UnitTask):
    """The audio encoder: hears up to 5 minutes of audio (any format, rate and number of channels)."""

    kind: ClassVar[str] = "encoder"
    cached: ClassVar[bool] = True
    model: str
    dtype: Precision = "auto"
    device: Device = "auto"

    class Out(BaseModel):
        rows: Tensor  # [n, size of the thinker's hidden states]: 25 rows a second, of Qwen3-Omni 13

    def __call__(self, *, audio: Upload) -> Out:
        raise NotImplementedError


class Thinker(LanguageModel):
    """The language model. With `speak` it streams what its Talker needs beside the text.

    `rows` of Qwen2.5-Omni: first [prompt + 1, size] (the sum of embedding and last hidden state of each token of the
    prompt, sounds by their hidden state alone; last the embedding that begins a reply), then a [1, size] for each token
    but the last, then a [2, size] that ends it. dtype is that of the model. Those of Qwen3-Omni stand in
    docs/models/qwen3-omni.md.

    On vLLM there is that of Qwen2.5-Omni.
    """

    kind: ClassVar[str] = "llm"
    model: str

    class Out(BaseModel):
        text: Stream[str]
        rows: Stream[list[Tensor]]
        tokens: int

    def __call__(
        self,
        *,
        prompt: str,
        system: str = "",  # "" leaves it to the model's template
        audio: list[Tensor] = [],  # noqa: B006  of OmniEar; heard before the prompt
        images: list[Tensor] = [],  # noqa: B006  of an ImageEncoder of this model; seen after the audio
        videos: list[Tensor] = [],  # noqa: B006  of one too, seen after the pictures
        times: list[list[float]] = [],  # noqa: B006  and what it says of each video
        speak: bool = True,
        speaker: str = "Chelsie",
        max_tokens: int = 512,
        temperature: float = 0.0,
    ) -> Out:
        raise NotImplementedError


class Talker(UnitTask):
    """Draws the codes of the speech, with the seed of the call, while the rows of its Thinker still arrive.

    Of Qwen2.5-Omni a moment is one code, 50 of them a second; of Qwen3-Omni one of each codebook, 12.5 times a second.
    """

    kind: ClassVar[str] = "talker"
    model: str
    dtype: Precision = "auto"
    device: Device = "auto"

    class Out(BaseModel):
        codes: Stream[list[Tensor]]  # int16 [n], or [n, codebooks]
        count: int  # moments

    def __call__(
        self,
        *,
        rows: Stream[list[Tensor]],
        max_codes: int = 4096,  # moments
        temperature: float = 0.9,
        top_k: int | None = None,  # None: as transformers draws for the family, 40 or 50
        top_p: float | None = None,  # None: 0.8 or 1.0
        repetition_penalty: float = 1.05,
    ) -> Out:
        raise NotImplementedError


class Vocoder(UnitTask):
    """Makes the sound of codes while they arrive: 20 ms of each moment of Qwen2.5-Omni, whose noise is drawn with the
    seed of the call; 80 ms of Qwen3-Omni, whose `speaker` is in the codes.
    """

    kind: ClassVar[str] = "generator"
    model: str
    device: Device = "auto"

    class Out(BaseModel):
        audio: Stream[Audio]
        samples: int

    def __call__(
        self,
        *,
        codes: Stream[list[Tensor]],
        speaker: str = "Chelsie",
        whole: bool = False,  # all at once when the last code is there, as transformers does it
    ) -> Out:
        raise NotImplementedError


class Said(BaseModel):
    """What is asked of an Omni, all one turn: the sound first, then pictures, videos, and the words."""

    text: str = ""
    audio: AudioUpload | None = None
    images: list[ImageUpload] = Field(default=[], max_length=MAX_IMAGES)
    videos: list[VideoUpload] = Field(default=[], max_length=MAX_VIDEOS)
    """Without their sound."""
    speak: bool = True
    speaker: str = "Chelsie"
    max_tokens: int = 512
    max_codes: int = 4096


class Reply(BaseModel):
    text: Stream[str]
    speech: Stream[Audio] = b""


class Omni(CompositeTask):
    """Audio, pictures, videos and text in, text and speech out together. Without `speak` there is no work for talker
    and vocoder, without audio none for the ear, without anything to see none for the eyes. `thinker`: one of this model
    that is declared otherwise.
    """

    def __init__(
        self, model: str, dtype: Precision = "auto", *, device: Device = "auto", thinker: Thinker | None = None
    ) -> None:
        self.ear = OmniEar(model=model, dtype=dtype, device=device)
        self.eyes = ImageEncoder(model=model, dtype=dtype, device=device)
        self.thinker = thinker or Thinker(model=model, dtype=dtype, device=device)
        self.talker = Talker(model=model, dtype=dtype, device=device)
        self.vocoder = Vocoder(model=model, device=device)

    def invoke(self, said: Said) -> Reply:
        heard = [] if said.audio is None else [self.ear(audio=said.audio).rows]
        seen = [self.eyes(image=image, among=len(said.images)).embeddings for image in said.images]
        watched = [self.eyes(video=video) for video in said.videos]
        thought = self.thinker(
            prompt=said.text,
            audio=heard,
            images=seen,
            videos=[one.embeddings for one in watched],
            times=[one.times for one in watched],
            speak=said.speak,
            speaker=said.speaker,
            max_tokens=said.max_tokens,
        )
        if not said.speak:
            return Reply(text=thought.text)
        codes = self.talker(rows=thought.rows, max_codes=said.max_codes).codes
        return Reply(text=thought.text, speech=self.vocoder(codes=codes, speaker=said.speaker).audio)
