"""What a client streams in: given back as it is, echoed by a task while it arrives, and looked at as a whole."""

from pydantic import BaseModel

from cornstalk import App, CompositeTask, Stream
from cornstalk.tasks.null import Null, NullStream
from cornstalk.types import Audio


class Ask(BaseModel):
    text: Stream[str]
    sound: Stream[Audio] = b""
    words: Stream[list[str]] = []
    title: str = "t"
    service_ms: float = 0.0
    look: bool = False


class Reply(BaseModel):
    echo: Stream[str]
    back: Stream[str]
    sound: Stream[Audio] = b""
    words: Stream[list[str]] = []
    whole: str = ""


class Live(CompositeTask):
    echo = NullStream(name="live-echo")
    value = Null(name="live-value")

    def invoke(self, q: Ask) -> Reply:
        echo = self.echo(text=q.title, source=q.text, service_ms=q.service_ms).text
        whole = self.value(text=q.text).digest if q.look and q.text.startswith("look") else ""
        return Reply(echo=echo, back=q.text, sound=q.sound, words=q.words, whole=whole)


app = App("live", Live())
