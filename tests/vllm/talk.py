"""A language model on vLLM whose workers have two slots each: four requests need both."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from cornstalk import App, CompositeTask, Stream
from cornstalk.tasks import LLM, Logprob, Sampling


class Question(Sampling):
    text: str
    logprobs: int | None = None
    json_schema: dict[str, Any] | None = None


class Answer(BaseModel):
    text: Stream[str]
    logprobs: Stream[list[Logprob]]


class Talk(CompositeTask):
    mind = LLM(
        engine="vllm",
        dtype="float32",
        engine_args={"max_model_len": 1024, "max_num_seqs": 2, "enforce_eager": True},
    )

    def invoke(self, q: Question) -> Answer:
        said = self.mind(prompt=q.text, logprobs=q.logprobs, json_schema=q.json_schema, **q.sampling())
        return Answer(text=said.text, logprobs=said.logprobs)


app = App("talk", Talk())
