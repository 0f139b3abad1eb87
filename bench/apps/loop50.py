"""Fifty null nodes in a row: as edges, or in a loop that looks at each result before it goes on."""

from pydantic import BaseModel

from cornstalk import App, CompositeTask
from cornstalk.tasks.null import Null


class Ask(BaseModel):
    text: str
    look: bool


class Reply(BaseModel):
    digest: str


class Loop(CompositeTask):
    step = Null(name="step", slots=64)

    def invoke(self, q: Ask) -> Reply:
        text = q.text
        for _ in range(50):
            text = self.step(text=text).digest
            if q.look and not text:
                break
        return Reply(digest=text)


app = App("loop50", Loop())
