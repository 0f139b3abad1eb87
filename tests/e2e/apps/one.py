"""One value and one stream, side by side."""

from pydantic import BaseModel

from cornstalk import App, CompositeTask, Stream
from cornstalk.tasks.null import Null, NullStream


class Ask(BaseModel):
    text: str
    pieces: int = 2
    service_ms: float = 0.0
    fail: str = ""


class Reply(BaseModel):
    digest: str
    text: Stream[str]


class One(CompositeTask):
    value = Null(name="value")
    talker = NullStream(name="talker")

    def invoke(self, q: Ask) -> Reply:
        digest = self.value(text=q.text, service_ms=q.service_ms, fail=q.fail).digest
        return Reply(digest=digest, text=self.talker(text=q.text, pieces=q.pieces, service_ms=q.service_ms).text)


app = App("one", One())
