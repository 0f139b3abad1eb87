"""`async def serve` over several composites: side by side and in turn, one stream read and one passed on."""

import asyncio

from pydantic import BaseModel

from cornstalk import App, CompositeTask, Stream, TaskError, chunks
from cornstalk.tasks.null import Null, NullStream


class Ask(BaseModel):
    text: str
    pieces: int = 4
    service_ms: float = 0.0
    fail: bool = False
    breaks: str = ""  # "read" or "whole": how a stream is taken that fails after its pieces


class Reply(BaseModel):
    marks: list[str]
    read: str
    error: str = ""
    text: Stream[str] = ""


class Line(BaseModel):
    text: str
    pieces: int = 0
    service_ms: float = 0.0
    fail: str = ""
    breaks: bool = False


class Spoken(BaseModel):
    mark: str
    text: Stream[str]


class Talk(CompositeTask):
    head = Null(name="shead")
    talker = NullStream(name="stalker")

    def invoke(self, line: Line) -> Spoken:
        mark = self.head(text=line.text, fail=line.fail).digest
        if mark[0] == "0":
            mark = self.head(text=mark).digest
        fail = "raise" if line.breaks else ""
        text = self.talker(text=line.text, pieces=line.pieces, service_ms=line.service_ms, fail=fail).text
        return Spoken(mark=mark, text=text)


talk = Talk()


async def serve(q: Ask) -> Reply:
    first, second = await asyncio.gather(
        talk(Line(text=q.text, pieces=2)), talk(Line(text=q.text + "2", pieces=2, service_ms=q.service_ms))
    )
    read = "".join([piece async for piece in chunks(first.text)]) + await second.text
    error = ""
    if q.fail:
        try:
            await talk(Line(text=q.text, fail="raise"))
        except TaskError as failed:
            error = failed.error.code
    if q.breaks:
        broken = await talk(Line(text=q.text, pieces=3, service_ms=q.service_ms, breaks=True))
        try:
            read += await broken.text if q.breaks == "whole" else "".join([p async for p in chunks(broken.text)])
        except TaskError as failed:
            error = failed.error.code
    last = await talk(Line(text=first.mark + second.mark, pieces=q.pieces, service_ms=q.service_ms))
    return Reply(marks=[first.mark, second.mark, last.mark], read=read, error=error, text=last.text)


app = App("served", serve)
