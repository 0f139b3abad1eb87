"""How each family of multimodal models reads pictures: what stands for one in a prompt, and which positions it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from components.llm.prompt import Prompt
from cornstalk.errors import EngineError


@dataclass(frozen=True)
class Written:
    """What a chat template writes for a picture, and what the model reads instead, with one placeholder."""

    mark: str
    out: str


@dataclass(frozen=True)
class Reading:
    """Of one family. `axes`: rows have positions in time, height and width, which the shape of embeddings tells."""

    written: Written
    axes: bool = False
    both_ways: bool = False
    deep: bool = False
    """The first axis of embeddings is that of the layers which they are for."""


_QWEN: Final = Written("<|image_pad|>", "<|image_pad|>")
READINGS: Final = {
    "qwen2_5_vl": Reading(_QWEN, axes=True),
    "qwen2_vl": Reading(_QWEN, axes=True),
    "qwen3_vl": Reading(_QWEN, axes=True, deep=True),
    "llava_onevision": Reading(Written("<image>", "<image>")),
    "internvl": Reading(Written("<IMG_CONTEXT>", "<img><IMG_CONTEXT></img>")),
    "gemma3": Reading(
        Written("<start_of_image>", "\n\n<start_of_image><image_soft_token><end_of_image>\n\n"), both_ways=True
    ),
}
"""By the model type of transformers."""


def with_pictures(tokens: Sequence[int], pictures: Sequence[Any], reading: Reading, config: Any) -> Prompt:
    """`pictures`: embeddings that an encoder of this model made, torch. `tokens` has a placeholder for each, in order.

    Raises EngineError: bad_states for embeddings of another model, bad_input if the template left a picture out.
    """
    import torch

    _check(pictures, reading, config)
    if list(tokens).count(config.image_token_id) != len(pictures):
        raise EngineError("the chat template of this model has no place for so many pictures", "bad_input")
    rows = [picture.flatten(1 if reading.deep else 0, -2) for picture in pictures]
    laid, left = _Laid(), iter(zip(rows, pictures, strict=True))
    for token in tokens:
        if token == config.image_token_id:
            given, picture = next(left)
            laid.picture(token, given.shape[-2], picture.shape[-4:-1] if reading.axes else ())
        else:
            laid.text(token)
    positions = torch.tensor(laid.positions).T if reading.axes else None
    joined = torch.cat(rows, -2)
    return Prompt(laid.tokens, joined if reading.deep else joined[None], laid.spans, positions, reading.both_ways)


def _check(pictures: Sequence[Any], reading: Reading, config: Any) -> None:
    size = config.get_text_config().hidden_size
    layers = (1 + len(config.vision_config.deepstack_visual_indexes),) if reading.deep else ()
    axes = len(layers) + (4 if reading.axes else 2)
    for picture in pictures:
        same = picture.ndim == axes and picture.shape[-1] == size and tuple(picture.shape[: len(layers)]) == layers
        if not (same and picture.is_floating_point()):
            raise EngineError(
                f"embeddings {list(picture.shape)} are not those of an encoder of this model, whose rows have {size} "
                "values",
                "bad_states",
            )


class _Laid:
    """A prompt as it grows."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.spans: list[tuple[int, int]] = []
        self.positions: list[tuple[int, ...]] = []
        self._next = 0

    def text(self, token: int) -> None:
        self.tokens.append(token)
        self.positions.append((self._next,) * 3)
        self._next += 1

    def picture(self, token: int, rows: int, grid: Sequence[int]) -> None:
        start = len(self.tokens)
        self.tokens += [token] * rows
        self.spans.append((start, start + rows))
        if grid:
            frames, high, wide = grid
            at = self._next
            self.positions += [
                (at + t, at + y, at + x) for t in range(frames) for y in range(high) for x in range(wide)
            ]
            self._next += max(high, wide)
