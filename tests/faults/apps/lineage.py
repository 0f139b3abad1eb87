"""A tensor, a stream that is made from it, and a stream over that stream."""

from pydantic import BaseModel

from cornstalk import App, CompositeTask, Stream
from cornstalk.tasks.null import NullStream, NullTensor


class Ask(BaseModel):
    text: str
    pieces: int = 20
    service_ms: float = 100.0


class Reply(BaseModel):
    text: Stream[str]
    echo: Stream[str]


class Lineage(CompositeTask):
    maker = NullTensor(name="maker")
    talker = NullStream(name="talker")
    echo = NullStream(name="echo")

    def invoke(self, q: Ask) -> Reply:
        tensor = self.maker(text=q.text, nbytes=50_000).tensor
        text = self.talker(text=q.text, tensors=[tensor], pieces=q.pieces, service_ms=q.service_ms).text
        return Reply(text=text, echo=self.echo(text="e", source=text).text)


app = App("lineage", Lineage())
