"""A language model on vLLM."""

from __future__ import annotations

from pydantic import BaseModel

from cornstalk import App, CompositeTask, Stream
from cornstalk.tasks import LLM, Sampling


class Question(Sampling):
    text: str


class Answer(BaseModel):
    text: Stream[str]  # and no value beside it: the response begins with its first piece


class Talk(CompositeTask):
    mind = LLM(
        engine="vllm",
        dtype="bfloat16",
        engine_args={"max_model_len": 1024, "max_num_seqs": 8, "enforce_eager": True},
    )

    def invoke(self, q: Question) -> Answer:
        return Answer(text=self.mind(prompt=q.text, **q.sampling()).text)


app = App("talk", Talk())
