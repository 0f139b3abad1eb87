"""A text stream and a value, side by side, by the null engine."""

from pydantic import BaseModel

from cornstalk import App, CompositeTask, Stream
from cornstalk.tasks.null import Null, NullStream


class Ask(BaseModel):
    text: str
    pieces: int = 4
    service_ms: float = 0.0


class Reply(BaseModel):
    digest: str
    text: Stream[str]


class Words(CompositeTask):
    mark = Null(name="cli")
    talk = NullStream(name="cli")

    def invoke(self, q: Ask) -> Reply:
        text = self.talk(text=q.text, pieces=q.pieces, service_ms=q.service_ms).text
        return Reply(digest=self.mark(text=q.text).digest, text=text)


app = App("words", Words())
