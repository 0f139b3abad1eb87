"""`async def serve`: a call, and another one with its result."""

from pydantic import BaseModel

from cornstalk import App, CompositeTask, Stream
from cornstalk.tasks.null import Null, NullStream


class Ask(BaseModel):
    text: str
    service_ms: float = 0.0


class Reply(BaseModel):
    mark: str
    text: Stream[str]


class Line(BaseModel):
    text: str
    service_ms: float


class Turn(CompositeTask):
    value = Null(name="value")
    talker = NullStream(name="talker")

    def invoke(self, line: Line) -> Reply:
        mark = self.value(text=line.text).digest
        return Reply(mark=mark, text=self.talker(text=line.text, pieces=4, service_ms=line.service_ms).text)


turn = Turn()


async def serve(q: Ask) -> Reply:
    first = await turn(Line(text=q.text, service_ms=q.service_ms))
    last = await turn(Line(text=first.mark, service_ms=q.service_ms))
    return Reply(mark=last.mark, text=last.text)


app = App("turns", serve)
