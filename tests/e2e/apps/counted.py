"""An `async def serve` with a side effect: a line in a file each time it runs."""

from pathlib import Path

from pydantic import BaseModel

from cornstalk import App, CompositeTask
from cornstalk.tasks.null import Null


class Ask(BaseModel):
    text: str
    file: str
    service_ms: float = 0.0


class Reply(BaseModel):
    digest: str


class Value(CompositeTask):
    value = Null(name="cvalue")

    def invoke(self, q: Ask) -> Reply:
        return Reply(digest=self.value(text=q.text, service_ms=q.service_ms).digest)


value = Value()


def note(q: Ask) -> None:
    with Path(q.file).open("a") as file:
        file.write(f"{q.text}\n")


async def serve(q: Ask) -> Reply:
    note(q)
    return await value(q)


app = App("counted", serve)
