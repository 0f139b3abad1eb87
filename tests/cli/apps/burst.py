"""A text stream by workers that take two items at once."""

from pydantic import BaseModel

from cornstalk import App, CompositeTask, Stream
from cornstalk.tasks.null import NullStream


class Ask(BaseModel):
    text: str
    pieces: int = 4
    service_ms: float = 50.0


class Reply(BaseModel):
    text: Stream[str]


class Burst(CompositeTask):
    talk = NullStream(name="burst", slots=2)

    def invoke(self, q: Ask) -> Reply:
        return Reply(text=self.talk(text=q.text, pieces=q.pieces, service_ms=q.service_ms).text)


app = App("burst", Burst())
