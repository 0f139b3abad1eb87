"""A call that is recorded before it is known whether an earlier one fails: a guess, which is cut off if it does."""

from pydantic import BaseModel

from cornstalk import App, CompositeTask, Stream, TaskError
from cornstalk.tasks.null import Null, NullStream


class Ask(BaseModel):
    text: str


class Reply(BaseModel):
    text: Stream[str]


class Guess(CompositeTask):
    value = Null(name="value")
    talker = NullStream(name="talker")

    def invoke(self, q: Ask) -> Reply:
        try:
            digest = self.value(text=q.text, fail="raise", service_ms=500).digest
            guess = self.talker(text="guess", pieces=1000, service_ms=100).text
            self.value(text=digest)
            return Reply(text=guess)
        except TaskError:
            return Reply(text=self.talker(text=q.text, pieces=2).text)


app = App("guess", Guess())
