"""How each family of multimodal models reads pictures and videos: what stands for one in a prompt, and where it is."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from components.llm.answer import Ask
from components.llm.chat import Chat
from components.llm.content import Shown, content_of
from components.llm.prompt import Prompt
from components.tensors import torch_of
from cornstalk.errors import EngineError


class Written(NamedTuple):
    """What a chat template writes for a picture or a video, and what the model reads instead."""

    mark: str
    out: str
    """With one placeholder. Of each step of a video `n`, from 1, and `at`, in seconds, may stand in it."""
    between: str | None = None
    """What stands between the steps of a video; None: they are one."""


@dataclass(frozen=True)
class Reading:
    """Of one family. `axes`: rows have positions in time, height and width, which the shape of embeddings tells."""

    written: Written
    video: Written | None = None
    """None: its frames are pictures."""
    axes: bool = False
    timed: bool = False
    """Whether the positions of a video follow its time, not the number of its steps."""
    fractions: bool = False
    """Whether they do so exactly, not only in whole numbers."""
    lasts: bool = False
    """Whether what comes after a video has positions after its last step, not only after its height and width."""
    both_ways: bool = False
    deep: bool = False
    """The first axis of embeddings is that of the layers which they are for."""


_QWEN: Final = Written("<|image_pad|>", "<|image_pad|>")
_QWEN_VIDEO: Final = Written("<|video_pad|>", "<|video_pad|>")
_QWEN3_VIDEO: Final = Written("<|video_pad|>", "<{at:.1f} seconds><|vision_start|><|video_pad|><|vision_end|>", "")
_INTERN: Final = "<img><IMG_CONTEXT></img>"
READINGS: Final = {
    "qwen2_5_vl": Reading(_QWEN, _QWEN_VIDEO, axes=True, timed=True),
    "qwen2_vl": Reading(_QWEN, _QWEN_VIDEO, axes=True),
    "qwen3_vl": Reading(_QWEN, _QWEN3_VIDEO, axes=True, deep=True),
    "llava_onevision": Reading(Written("<image>", "<image>"), Written("<video>", "<video>")),
    "internvl": Reading(Written("<IMG_CONTEXT>", _INTERN), Written("<video>", "Frame{n}: " + _INTERN, "\n")),
    "gemma3": Reading(
        Written("<start_of_image>", "\n\n<start_of_image><image_soft_token><end_of_image>\n\n"), both_ways=True
    ),
}
"""By the model type of transformers."""


class Span(NamedTuple):
    """Rows that take the place of one placeholder."""

    rows: Any
    """[n, size], or [1 + layers, n, size] of a family that is `deep`."""
    grid: tuple[int, int] = (0, 0)
    """Rows and columns of each step, where rows have positions."""
    ticks: Sequence[float] = ()
    """When each step is, in positions after the first."""
    takes: float = 0
    """Positions until what comes next, where rows have positions."""


@dataclass(frozen=True, eq=False)
class Seen(Shown):
    """A picture or a video as an encoder of this model has seen it."""

    spans: Sequence[Span]


def read(chat: Chat, ask: Ask, reading: Reading, config: Any) -> Prompt:
    """The prompt of a request with all that it shows.

    Raises EngineError: bad_states for embeddings of another model, bad_input for what the template, or the prompt, has
    no place for.
    """
    images = [[picture(torch_of(image), reading, config)] for image in ask.images]
    videos = [video(torch_of(rows), times, reading, config) for rows, times in zip(ask.videos, ask.times, strict=True)]
    tokens, shown = chat.turn(content_of(ask.prompt, images, videos), ask.system, ask.tools)
    spans = [span for one in shown if isinstance(one, Seen) for span in one.spans]
    return laid(tokens, spans, reading, {config.image_token_id, getattr(config, "video_token_id", None)})


def picture(embeddings: Any, reading: Reading, config: Any) -> Seen:
    """`embeddings` torch, of one picture. Raises EngineError bad_states for those of another model."""
    _check(embeddings, reading, config, 4 if reading.axes else 2)
    return Seen("image", *reading.written[:2], [_span(embeddings, reading, [0])])


def video(embeddings: Any, times: Sequence[float], reading: Reading, config: Any) -> list[Seen]:
    """`embeddings` torch, of one video; several for a family to which its frames are pictures. Raises EngineError
    bad_states.
    """
    written = reading.video
    in_steps = written is None or written.between is not None
    _check(embeddings, reading, config, 4 if reading.axes else 3 if in_steps else 2)
    steps = embeddings.split(1, 1 if reading.deep else 0)
    if (reading.axes or in_steps) and len(times) != len(steps):
        raise EngineError(f"a video of {len(steps)} steps has {len(times)} times", "bad_states")
    if written is None:
        return [Seen("image", *reading.written[:2], [_span(step[0], reading, [0])]) for step in steps]
    if written.between is None:
        ticks = _ticks(times, reading, config) if reading.timed else range(len(steps))
        return [Seen("video", *written[:2], [_span(embeddings, reading, ticks)])]
    out = written.between.join(written.out.format(n=n, at=at) for n, at in enumerate(times, 1))
    return [Seen("video", written.mark, out, [_span(step, reading, [0]) for step in steps])]


def _check(embeddings: Any, reading: Reading, config: Any, axes: int) -> None:
    size = config.get_text_config().hidden_size
    layers = (1 + len(config.vision_config.deepstack_visual_indexes),) if reading.deep else ()
    shape = tuple(embeddings.shape)
    same = len(shape) == len(layers) + axes and shape[-1] == size and shape[: len(layers)] == layers and 0 not in shape
    if not (same and embeddings.is_floating_point()):
        raise EngineError(
            f"embeddings {list(shape)} are not those of an encoder of this model, whose rows have {size} values",
            "bad_states",
        )


def _ticks(times: Sequence[float], reading: Reading, config: Any) -> list[float]:
    """Steps are equal parts of the video; in the arithmetic of transformers."""
    import torch

    a_second = getattr(config, "position_id_per_seconds", None) or config.vision_config.tokens_per_second
    each = torch.tensor(times[1] if len(times) > 1 else 0.0)
    ticks = torch.arange(len(times)) * each * a_second
    told: list[float] = (ticks if reading.fractions else ticks.long()).tolist()
    return told


def _span(embeddings: Any, reading: Reading, ticks: Sequence[float]) -> Span:
    rows = embeddings.flatten(1 if reading.deep else 0, -2)
    if not reading.axes:
        return Span(rows)
    high, wide = embeddings.shape[-3:-1]
    return Span(rows, (high, wide), ticks, max(high, wide, ticks[-1] + 1 if reading.lasts else 0))


def laid(tokens: Sequence[int], spans: Sequence[Span], reading: Reading, placeholders: Container[int | None]) -> Prompt:
    """Each placeholder makes way for the rows of the next span. Raises EngineError bad_input if some have none."""
    import torch

    if not spans:
        return Prompt(tokens)
    if sum(token in placeholders for token in tokens) != len(spans):
        raise EngineError("the tokenizer of this model has no placeholder for a picture or a video", "bad_input")
    whole, left = _Laid(), iter(spans)
    for token in tokens:
        if token in placeholders:
            whole.span(token, next(left))
        else:
            whole.text(token)
    positions = torch.tensor(whole.positions).T if reading.axes else None
    joined = spans[0].rows if len(spans) == 1 else torch.cat([span.rows for span in spans], -2)
    return Prompt(whole.tokens, joined if reading.deep else joined[None], whole.spans, positions, reading.both_ways)


class _Laid:
    """A prompt as it grows."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.spans: list[tuple[int, int]] = []
        self.positions: list[tuple[float, ...]] = []
        self._next: float = 0

    def text(self, token: int) -> None:
        self.tokens.append(token)
        self.positions.append((self._next,) * 3)
        self._next += 1

    def span(self, token: int, span: Span) -> None:
        start, n = len(self.tokens), span.rows.shape[-2]
        self.spans.append((start, start + n))
        if span.grid == (0, 0):  # as a text of so many tokens
            for _ in range(n):
                self.text(token)
            return
        self.tokens += [token] * n
        self.positions += self._grid(span)
        self._next += span.takes

    def _grid(self, span: Span) -> Iterator[tuple[float, ...]]:
        high, wide = span.grid
        at = self._next
        return ((at + tick, at + y, at + x) for tick in span.ticks for y in range(high) for x in range(wide))
