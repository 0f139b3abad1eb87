"""Language models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BaseModel, Field

from cornstalk.tasks.computing import LanguageModel
from cornstalk.types import Stream, Tensor

MAX_IMAGES: Final = 16
"""Of one prompt."""
MAX_VIDEOS: Final = 4


class Place(BaseModel):
    """Where the next picture or the next video of a prompt stands."""

    type: Literal["image", "video"]


IMAGE: Final = Place(type="image")
VIDEO: Final = Place(type="video")

Prompt = str | list[str | Place]
MaxTokens = Annotated[int, Field(ge=1)]
Stops = Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=16)]
Temperature = Annotated[float, Field(ge=0.0, le=10.0, allow_inf_nan=False)]
TopP = Annotated[float, Field(gt=0.0, le=1.0)]
TopK = Annotated[int, Field(ge=0)]
MinP = Annotated[float, Field(ge=0.0, le=1.0)]
RepetitionPenalty = Annotated[float, Field(gt=0.0, le=10.0)]
Penalty = Annotated[float, Field(ge=-2.0, le=2.0)]
Tools = Annotated[list[dict[str, Any]], Field(max_length=128)]
Top = Annotated[int, Field(ge=0, le=20)]
Seed = Annotated[int, Field(ge=0, lt=2**64)]


def missing(prompt: str | Sequence[Any], images: int, videos: int) -> str:
    """Why a prompt, as it is or as it travels, does not go with so many pictures and videos, or ""."""
    if isinstance(prompt, str):  # which may be on its way still
        return ""
    places: list[str] = [Place.model_validate(part).type for part in prompt if not isinstance(part, str)]
    given = {"image": images, "video": videos}
    kind = next((kind for kind in given if places.count(kind) > given[kind]), None)
    if kind is None:
        return ""
    return f"the prompt has {places.count(kind)} places of type {kind}, and {given[kind]} were given"


class Sampling(BaseModel):
    """How an answer is drawn and where it ends: fields for the request of an app, which calls its LLM with
    `llm(prompt=..., **request.sampling())`. A value out of its range is refused at the door, before anything is stored.
    """

    max_tokens: MaxTokens = 64
    stop: Stops = []
    """The answer ends before the first of these strings."""
    temperature: Temperature = 0.0
    """0 takes the likeliest token each time; the larger, the more alike all tokens are."""
    top_p: TopP = 1.0
    """Only the likeliest tokens that together have this probability."""
    top_k: TopK = 0
    """Only so many of the likeliest tokens; 0: all."""
    min_p: MinP = 0.0
    """Only tokens with at least this part of the probability of the likeliest."""
    repetition_penalty: RepetitionPenalty = 1.0
    """Over 1: tokens of the prompt and of the answer so far are less likely. Logits are divided or multiplied by it."""
    presence_penalty: Penalty = 0.0
    """Taken from the logit of each token that is in the answer so far."""
    frequency_penalty: Penalty = 0.0
    """The same, as often as it is there."""
    seed: Seed | None = None
    """None: that of the call, which follows from that of the request."""

    def sampling(self) -> dict[str, Any]:
        """These fields as inputs of an LLM."""
        return {name: getattr(self, name) for name in Sampling.model_fields}


class Likely(BaseModel):
    """A token that the model might say next."""

    token: int
    text: str
    """Of this token alone: a character that takes several tokens is U+FFFD in each of them."""
    logprob: float
    """Natural logarithm of its probability as the model gives it, before temperature, penalties and limits; where there
    is a schema, of what fits."""


class Logprob(Likely):
    """A token of an answer, and the likeliest ones in its place, the likeliest first."""

    top: list[Likely]


class LLM(LanguageModel):
    """Answers one prompt: a text, or texts, IMAGE and VIDEO in their order. At temperature 0 with the likeliest tokens;
    else drawn with `seed`, or that of the call.

    `model`: one that comes with Cornstalk, the absolute path of a folder with any causal language model of
    transformers, or its name ("owner/name") in the Hugging Face cache of the machines that its workers run on.

    The answer ends at `max_tokens`, before the first of the `stop` strings, or where the model ends it. `Sampling` says
    what the inputs of sampling mean. One that is out of its range raises BadInput at the call.

    `logprobs`: as many of the likeliest tokens beside each of the answer; 0: that one alone. None: the output of this
    name stays empty. `json_schema`: the answer is one line of JSON that fits it, if `max_tokens` are enough.
    `tools`: as transformers and OpenAI write them, for models whose chat template has a place for them. A call of one
    comes out as the text in which the model writes it, control tokens included: the app reads it.

    Each IMAGE in the prompt stands for the next of `images`, each VIDEO for the next of `videos`; what has no place
    stands before the prompt, pictures first.
    """

    kind: ClassVar[str] = "llm"
    model: str = "smollm2-135m-instruct"

    class Out(BaseModel):
        text: Stream[str]
        tokens: int  # of the answer, counting those of a stop string
        logprobs: Stream[list[Logprob]]  # one for each of `tokens`

    def __call__(
        self,
        *,
        prompt: Prompt,
        system: str = "",  # "" leaves it to the model's template
        max_tokens: MaxTokens = 64,
        stop: Stops = [],  # noqa: B006
        temperature: Temperature = 0.0,
        top_p: TopP = 1.0,
        top_k: TopK = 0,
        min_p: MinP = 0.0,
        repetition_penalty: RepetitionPenalty = 1.0,
        presence_penalty: Penalty = 0.0,
        frequency_penalty: Penalty = 0.0,
        seed: Seed | None = None,
        logprobs: Top | None = None,
        json_schema: dict[str, Any] | None = None,
        tools: Tools = [],  # noqa: B006
        images: list[Tensor] = [],  # noqa: B006  of an ImageEncoder of the same model
        videos: list[Tensor] = [],  # noqa: B006  of one too
        times: list[list[float]] = [],  # noqa: B006  and what it says of each video
    ) -> Out:
        raise NotImplementedError
