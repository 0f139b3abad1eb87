"""A value, two tensors side by side, a join, a stream and a stream over the stream."""

from pydantic import BaseModel

from cornstalk import App, CompositeTask, Stream
from cornstalk.tasks.null import Null, NullStream, NullTensor


class Ask(BaseModel):
    text: str
    nbytes: int = 100_000
    pieces: int = 5
    service_ms: float = 0.0


class Reply(BaseModel):
    joined: str
    text: Stream[str]
    echo: Stream[str]


class Chain(CompositeTask):
    head = Null(name="head")
    maker = NullTensor(name="maker")
    join = Null(name="join")
    talker = NullStream(name="talker")
    echo = NullStream(name="echo")

    def invoke(self, q: Ask) -> Reply:
        mark = self.head(text=q.text, service_ms=q.service_ms).digest
        left = self.maker(text=mark, nbytes=q.nbytes).tensor
        right = self.maker(text=q.text, nbytes=q.nbytes).tensor
        joined = self.join(text=mark, tensors=[left, right]).digest
        text = self.talker(text=joined, pieces=q.pieces, service_ms=q.service_ms).text
        return Reply(joined=joined, text=text, echo=self.echo(text="e", source=text).text)


app = App("chain", Chain())
