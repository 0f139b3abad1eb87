"""One stream output in three fields of the response, one of them in a nested model."""

from pydantic import BaseModel

from cornstalk import App, CompositeTask, Stream
from cornstalk.tasks.null import NullStream


class Ask(BaseModel):
    text: str
    pieces: int = 4
    service_ms: float = 0.0


class Part(BaseModel):
    text: Stream[str]


class Reply(BaseModel):
    text: Stream[str]
    again: Stream[str]
    other: Stream[str]
    parts: list[Part]


class Twice(CompositeTask):
    talker = NullStream(name="talker")

    def invoke(self, q: Ask) -> Reply:
        text = self.talker(text=q.text, pieces=q.pieces, service_ms=q.service_ms).text
        other = self.talker(text=q.text + "!", pieces=q.pieces, service_ms=q.service_ms).text
        return Reply(text=text, again=text, other=other, parts=[Part(text=text)])


app = App("twice", Twice())
