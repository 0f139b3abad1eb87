"""Eight null nodes, each fed by the one before."""

from pydantic import BaseModel

from cornstalk import App, CompositeTask
from cornstalk.tasks.null import Null


class Ask(BaseModel):
    text: str


class Reply(BaseModel):
    digest: str


class Chain(CompositeTask):
    step = Null(name="step", slots=64)

    def invoke(self, q: Ask) -> Reply:
        text = q.text
        for _ in range(8):
            text = self.step(text=text).digest
        return Reply(digest=text)


app = App("chain8", Chain())
