"""Control flow on results: a loop, a branch, a caught failure, a nested composite that breaks, a changing way."""

from pydantic import BaseModel

from cornstalk import App, CompositeTask, Stream, TaskError
from cornstalk.tasks.null import Null, NullStream

CALLS = {"of another": 0}


def another() -> str:
    """Another text each time, in a way that no lint sees."""
    CALLS["of another"] += 1
    return f"another {CALLS['of another']}"


class Ask(BaseModel):
    text: str
    program: str = "loop"
    times: int = 3


class Reply(BaseModel):
    path: list[str] = []
    text: Stream[str] = ""


class Twice(CompositeTask):
    inner = Null(name="inner")

    def invoke(self, text: str) -> str:
        first = self.inner(text=text).digest
        return self.inner(text=first.upper() if first[0] in "01234567" else first).digest


class Programs(CompositeTask):
    step = Null(name="step")
    talker = NullStream(name="ptalker")
    twice = Twice()

    def invoke(self, q: Ask) -> Reply:
        return getattr(self, q.program)(q)

    def loop(self, q: Ask) -> Reply:
        path: list[str] = []
        text = q.text
        while len(path) < q.times:
            text = self.step(text=f"{text}!").digest
            path.append(text[:4])
        return Reply(path=path)

    def branch(self, q: Ask) -> Reply:
        mark = self.step(text=q.text).digest
        if mark[0] in "01234567":
            return Reply(path=["low"], text=self.talker(text=mark, pieces=3).text)
        return Reply(path=["high", self.step(text=mark).digest])

    def caught(self, q: Ask) -> Reply:
        try:
            return Reply(path=[self.step(text=q.text, fail="raise").digest])
        except TaskError as error:
            return Reply(path=[error.error.code, self.step(text=q.text).digest])

    def nested(self, q: Ask) -> Reply:
        return Reply(path=[self.twice(f"{q.text}{i}") for i in range(q.times)])

    def chance(self, q: Ask) -> Reply:
        first = self.step(text=q.text).digest
        self.step(text=another())
        return Reply(path=[first + self.step(text=another()).digest])

    def hidden(self, q: Ask) -> Reply:
        mark = self.step(text=q.text).digest
        return Reply(path=[self.step(text=type(mark).__name__).digest])

    def bug(self, q: Ask) -> Reply:
        mark = self.step(text=q.text).digest
        return Reply(path=[str(1 / (len(mark) - 32))])


app = App("programs", Programs())
