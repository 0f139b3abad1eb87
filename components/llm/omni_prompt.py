"""What the thinker of a Qwen-Omni reads: sounds, pictures and videos, by rows of ear and eyes, then the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from components.llm.answer import Ask
from components.llm.chat import Chat
from components.llm.pictures import Reading, Span, Written, laid, picture, video
from components.llm.prompt import Prompt
from components.tensors import torch_of
from cornstalk.errors import EngineError

_PICTURE: Final = Written("", "")
READINGS: Final = {
    "qwen2_5_omni_thinker": Reading(_PICTURE, _PICTURE, axes=True, timed=True, lasts=True),
    "qwen3_omni_moe_thinker": Reading(_PICTURE, _PICTURE, axes=True, timed=True, fractions=True, lasts=True, deep=True),
}
"""By the model type of the thinker. Each picture and each sound stands between two tokens that say so."""


def omni_prompt(chat: Chat, ask: Ask, sounds: Sequence[Any], config: Any) -> Prompt:
    """Sounds first, then pictures, then videos. `sounds` [n, size] each; `config` is that of the thinker.

    Raises EngineError bad_states for rows of another model.
    """
    reading = READINGS[config.model_type]
    if not (ask.images or ask.videos):
        reading = replace(reading, axes=False, deep=False)
    tokens: list[int] = []
    spans: list[Span] = []
    for rows in sounds:
        tokens += [config.audio_start_token_id, config.audio_token_id, config.audio_end_token_id]
        spans.append(Span(_heard(rows, reading, config)))
    for image in ask.images:
        tokens += [config.vision_start_token_id, config.image_token_id, config.vision_end_token_id]
        spans += picture(torch_of(image), reading, config).spans
    for rows, times in zip(ask.videos, ask.times, strict=True):
        tokens += [config.vision_start_token_id, config.video_token_id, config.vision_end_token_id]
        spans += video(torch_of(rows), times, reading, config)[0].spans
    assert isinstance(ask.prompt, str)
    whole = chat.prompt(ask.prompt, ask.system, sounds=tokens)
    return laid(whole, spans, reading, {config.audio_token_id, config.image_token_id, config.video_token_id})


def _heard(rows: Any, reading: Reading, config: Any) -> Any:
    """Rows of a sound; of a model that is `deep` with zeros for what its layers add to pictures."""
    size = config.get_text_config().hidden_size
    if not rows.is_floating_point() or rows.ndim != 2 or rows.shape[1] != size:
        raise EngineError(
            f"rows of sound {list(rows.shape)} are not [n, {size}] of the ear of this model", "bad_states"
        )
    if not reading.deep:
        return rows
    whole = rows.new_zeros(1 + len(config.vision_config.deepstack_visual_indexes), *rows.shape)
    whole[0] = rows
    return whole
