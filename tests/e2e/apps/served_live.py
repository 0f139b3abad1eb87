"""`async def serve` with live input: echoed by one composite, whose stream another one echoes, and read here."""

import asyncio

from pydantic import BaseModel

from cornstalk import App, CompositeTask, Stream, chunks
from cornstalk.tasks.null import NullStream


class Ask(BaseModel):
    text: Stream[str]


class Reply(BaseModel):
    read: str
    first: str
    text: Stream[str]


class Line(BaseModel):
    title: str
    text: Stream[str]


class Spoken(BaseModel):
    text: Stream[str]


class Echo(CompositeTask):
    echo = NullStream(name="sl-echo")

    def invoke(self, line: Line) -> Spoken:
        return Spoken(text=self.echo(text=line.title, source=line.text).text)


echo = Echo()


async def serve(q: Ask) -> Reply:
    first = await echo(Line(title="first", text=q.text))
    second = await echo(Line(title="second", text=first.text))
    read, whole = await asyncio.gather(_read(q.text), _read(first.text))
    return Reply(read=read, first=whole, text=second.text)


async def _read(text: str) -> str:
    return "".join([piece async for piece in chunks(text)])


app = App("served_live", serve)
