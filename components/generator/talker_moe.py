"""The talker of Qwen3-Omni: a decoder with experts draws the first code of each frame, and a small one the others.

The decoder advances several sequences in one step of fixed shape, so that no sequence depends on what runs beside it.
What it reads for a frame is the sum of the embeddings of all its codes and a row of the thinker. The code predictor
begins anew with each frame: it reads what the decoder made of the sequence so far, and the codes one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from components.generator.speech import Dice, Frame
from components.llm.experts import apart
from components.llm.memory import Memory
from components.llm.model import ATTENTION, STEP_ROWS, Rows, attention
from components.qwen_omni import OmniFolder

MARKS: Final = 3
"""Rows of a thinker that are of no token of its own: what begins, ends and pads a text."""
ADDED: Final = 6
"""Rows that the talker adds before it speaks: four of padding, one that begins, and the first of the text."""
_TOP_K: Final = 50
_TOP_P: Final = 0.8
"""Of the codes after the first, whatever is asked for the first: so transformers draws them."""


@dataclass(frozen=True)
class Opening:
    """What a thinker sends before its reply, and the first row of that. docs/models/qwen3-omni.md"""

    rows: Any  # [n + 3, size]
    media: Any  # bool [n]
    positions: Any  # float32 [3, n]
    speaker: int
    first: Any  # [size]

    def __len__(self) -> int:
        """Rows that the talker reads of it."""
        return len(self.media) + ADDED


@dataclass(frozen=True)
class Place:
    """One frame of one sequence, at `index` of its memory and `position` of its RoPE, and the row that goes with it."""

    memory: Memory
    index: int
    position: float
    frame: Frame
    row: Any  # [size]


class MoeTalker:
    """Float tensors of `dtype`, from its own weights only. One thread at a time. Raises SetupError."""

    def __init__(self, folder: OmniFolder, dtype: Any, device: str) -> None:
        from transformers import AttentionInterface
        from transformers import conversion_mapping as names
        from transformers.generation import logits_process as process
        from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as omni

        self.config = config = folder.config.talker_config
        AttentionInterface.register(ATTENTION, attention)
        # transformers knows how folders name experts of the whole and of its thinker, not of a talker alone
        experts = names.get_checkpoint_conversion_mapping(folder.family)
        names.register_checkpoint_conversion_mapping(config.text_config.model_type, experts, overwrite=True)
        talker = folder.part("talker.", omni.Qwen3OmniMoeTalkerForConditionalGeneration, config, dtype)
        talker.model.set_attn_implementation(ATTENTION)
        apart(talker.model, STEP_ROWS)
        self._talker, self._device, self._dtype = talker.to(device), device, dtype
        self._predictor = talker.code_predictor
        self.size, self.groups = config.thinker_hidden_size, config.num_code_groups
        self.codes, self.others = config.text_config.vocab_size, config.code_predictor_config.vocab_size
        self.context, self.end = config.text_config.max_position_embeddings, config.codec_eos_token_id
        self._warpers = [process.TopKLogitsWarper(_TOP_K), process.TopPLogitsWarper(_TOP_P)]

    def opening(self, told: Opening) -> tuple[Any, Any]:
        """What the decoder reads before it speaks: rows [n, size of its own], positions float32 [3, n]."""
        import torch

        config, count = self.config, len(told.media)
        special = [config.codec_nothink_id, config.codec_think_bos_id, config.codec_think_eos_id, told.speaker]
        with torch.inference_mode():
            rows, media = told.rows.to(self._device, self._dtype), told.media.to(self._device)
            read = self._talker.text_projection(torch.cat([rows, told.first.unsqueeze(0).to(rows)]))
            begin, _end, pad, first = read[count:].split(1)
            known = read[:count]
            known[media] = self._talker.hidden_projection(rows[:count][media])
            codes = torch.tensor([*special, config.codec_pad_id, config.codec_bos_id], device=self._device)
            added = torch.cat([pad.expand(ADDED - 2, -1), begin, first]) + self._talker.model.codec_embedding(codes)
            after = told.positions.max() + 1 + torch.arange(ADDED)
            return torch.cat([known, added]), torch.cat([told.positions, after.expand(3, -1)], 1)

    def read(self, memory: Memory, start: int, rows: Any, positions: Any) -> tuple[Any, Any]:
        """Takes a part of an opening into memory. Last state [size of its own] and logits [codes] float32 after it."""
        states, logits = self._run([Rows(memory, start, (0,) * len(rows))], rows, positions, 1)
        return states[0], logits[0]

    def step(self, places: Sequence[Place]) -> tuple[Any, Any]:
        """States [STEP_ROWS, size of its own] and logits [STEP_ROWS, codes] after up to STEP_ROWS frames."""
        import torch

        with torch.inference_mode():
            codes = torch.tensor([place.frame for place in places], device=self._device)
            first, *others = codes.unbind(1)
            tables = self._predictor.model.codec_embedding
            parts = [self._talker.model.codec_embedding(first)]
            parts += [table(some) for table, some in zip(tables, others, strict=True)]
            rows = torch.zeros(STEP_ROWS, self.size, dtype=self._dtype, device=self._device)
            rows[: len(places)] = torch.stack([place.row for place in places]).to(rows)
            inputs = self._talker.text_projection(rows)
            inputs[: len(places)] += torch.stack(parts, 1).sum(1)
        positions = torch.zeros(STEP_ROWS)
        positions[: len(places)] = torch.tensor([place.position for place in places])
        told = [Rows(place.memory, place.index, (0,)) for place in places]
        return self._run(told, inputs, positions.expand(3, -1), STEP_ROWS)

    def others_of(self, states: Sequence[Any], firsts: Sequence[int], dice: Sequence[Dice]) -> list[Frame]:
        """Whole frames, of the states that their first codes were drawn from, and those codes. Up to STEP_ROWS."""
        import torch
        from transformers import DynamicCache

        frames, cache = [[code] for code in firsts], DynamicCache(config=self.config.code_predictor_config)
        with torch.inference_mode():
            inputs = torch.zeros(STEP_ROWS, 2, states[0].shape[-1], dtype=self._dtype, device=self._device)
            known = self._talker.model.codec_embedding(torch.tensor(list(firsts), device=self._device))
            inputs[: len(firsts)] = torch.stack([torch.stack(list(states)), known], 1)
            for group in range(self.groups - 1):
                # by position: the name of the cache differs between releases of transformers
                output = self._predictor.model(None, None, None, cache, inputs)
                scores = self._predictor.lm_head[group](output.last_hidden_state[:, -1]).float().cpu()
                for warper in self._warpers:
                    scores = warper(None, scores)
                for frame, one, die in zip(frames, scores, dice, strict=False):
                    frame.append(die.pick(one))
                codes = [frame[-1] for frame in frames] + [0] * (STEP_ROWS - len(frames))
                drawn = torch.tensor(codes, device=self._device).unsqueeze(1)
                inputs = self._predictor.model.codec_embedding[group](drawn)
        return [tuple(frame) for frame in frames]

    def _run(self, rows: Sequence[Rows], inputs: Any, positions: Any, last: int) -> tuple[Any, Any]:
        """To the decoder the rows are one sequence; only its attention knows better."""
        import torch

        with torch.inference_mode():
            output = self._talker.model(
                inputs_embeds=inputs.unsqueeze(0),
                position_ids=positions.unsqueeze(1).to(self._device),
                use_cache=False,
                rows=rows,
            )
            states = output.last_hidden_state[0, -last:]
            return states, self._talker.codec_head(states).float().cpu()
