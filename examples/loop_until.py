"""Asks again until the answer passes a check, at most three times.

    cornstalk deploy examples/loop_until.py
    cornstalk invoke loop_until "Write a sentence about the sea." --set words=12

Looking at an answer is what makes the loop wait for it. Each further round costs one more pass of `invoke`, and nothing
that is known already is computed again.
"""

from pydantic import BaseModel, Field

from cornstalk import App, CompositeTask
from cornstalk.tasks import LLM

ROUNDS = 3


class Question(BaseModel):
    text: str
    words: int = Field(12, ge=1, le=200)
    """The most words that an answer may have."""


class Answer(BaseModel):
    text: str
    """The first that is short enough, else the shortest."""
    passed: bool
    tries: list[str]


class LoopUntil(CompositeTask):
    mind = LLM()

    def invoke(self, q: Question) -> Answer:
        tries: list[str] = []
        prompt = f"{q.text}\nAnswer in {q.words} words or fewer."
        for number in range(ROUNDS):
            text = self.mind(prompt=prompt, temperature=number / 2).text.strip()  # first the likeliest, then others
            tries.append(text)
            if 0 < len(text.split()) <= q.words:
                return Answer(text=text, passed=True, tries=tries)
        return Answer(text=min(tries, key=len), passed=False, tries=tries)


app = App("loop_until", LoopUntil())
