"""A stream of tensors that lie in the sidecar, one of small tensors made from it, and a stream over that."""

from pydantic import BaseModel

from cornstalk import App, CompositeTask
from cornstalk.tasks.null import NullTensors


class Ask(BaseModel):
    text: str
    pieces: int = 12
    service_ms: float = 50.0


class Reply(BaseModel):
    digests: list[str]


class Rows(CompositeTask):
    maker = NullTensors(name="rows")
    small = NullTensors(name="small")
    last = NullTensors(name="last")

    def invoke(self, q: Ask) -> Reply:
        made = self.maker(text=q.text, pieces=q.pieces, nbytes=20_000, service_ms=q.service_ms)
        small = self.small(text="s", source=made.tensors, nbytes=100)
        last = self.last(text="l", source=small.tensors, nbytes=9_000)
        return Reply(digests=[made.digest, small.digest, last.digest])


app = App("rows", Rows())
