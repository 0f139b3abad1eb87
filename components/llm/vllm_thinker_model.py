"""The thinker of Qwen2.5-Omni in vLLM, and the connector to which it hands the hidden states of each step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.distributed import get_tensor_model_parallel_rank
from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)
from vllm.forward_context import get_forward_context

from components.llm.vllm_models import Placed
from components.llm.vllm_states import HEARD_AS, Part, Sender

ADDRESS = "address"
"""In the extra configuration of the connector: where states go."""


class Thinker(Placed):
    def forward(
        self, input_ids: Any, positions: Any, intermediate_tensors: Any = None, inputs_embeds: Any = None, **_: Any
    ) -> Any:
        states = super().forward(input_ids, positions, intermediate_tensors, inputs_embeds)
        if has_kv_transfer_group():
            get_kv_transfer_group().tell(inputs_embeds, states)
        return states


@dataclass
class Step(KVConnectorMetadata):  # type: ignore[misc]
    parts: list[Part] = field(default_factory=list)


class StatesConnector(KVConnectorBase_V1):  # type: ignore[misc]
    """Two of them: that of the scheduler knows the blocks of requests, that of a model runner sends."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._block = vllm_config.cache_config.block_size
        self._known: dict[str, tuple[str, list[int]]] = {}
        sends = role is KVConnectorRole.WORKER and get_tensor_model_parallel_rank() == 0
        given = vllm_config.kv_transfer_config.kv_connector_extra_config
        self._sender = Sender(given[ADDRESS]) if sends else None

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        return True  # a whole graph would run the model without its Python

    @property
    def requires_kv_delivery(self) -> bool:
        return False

    def tell(self, embeds: Any, states: Any) -> None:
        """`embeds` and `states` [tokens of the step, size]."""
        step = self._connector_metadata
        if self._sender is None or not isinstance(step, Step) or not step.parts:
            return
        slots = next(iter(get_forward_context().attn_metadata.values())).slot_mapping.tolist()
        places = {slot: place for place, slot in enumerate(slots)}
        for part in step.parts:
            first = places[part.slot]
            rows = slice(first, first + part.count)
            self._sender.send(part.heard_as, part.start, torch.stack([embeds[rows], states[rows]]))

    def build_connector_meta(self, scheduler_output: Any) -> Step:
        for gone in scheduler_output.finished_req_ids:
            self._known.pop(gone, None)
        started = {}
        for new in scheduler_output.scheduled_new_reqs:
            if heard_as := (new.sampling_params.extra_args or {}).get(HEARD_AS):
                self._known[new.req_id] = heard_as, list(new.block_ids[0])
                started[new.req_id] = new.num_computed_tokens
        again = scheduler_output.scheduled_cached_reqs
        for name, blocks, computed in zip(again.req_ids, again.new_block_ids, again.num_computed_tokens, strict=True):
            if name in self._known:
                heard_as, held = self._known[name]
                kept = [] if name in again.resumed_req_ids else held
                self._known[name] = heard_as, [*kept, *(blocks[0] if blocks else ())]
                started[name] = computed
        return Step([self._part(name, start, scheduler_output) for name, start in started.items()])

    def _part(self, name: str, start: int, scheduler_output: Any) -> Part:
        heard_as, blocks = self._known[name]
        slot = blocks[start // self._block] * self._block + start % self._block
        return Part(heard_as, start, scheduler_output.num_scheduled_tokens[name], slot)

    def shutdown(self) -> None:
        if self._sender is not None:
            self._sender.close()

    # Keys and values stay where they are.

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        return

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        return

    def wait_for_layer_load(self, layer_name: str) -> None:
        return

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        return

    def wait_for_save(self) -> None:
        return
