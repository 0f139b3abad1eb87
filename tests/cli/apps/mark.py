"""Shares its only component with words.py."""

from pydantic import BaseModel

from cornstalk import App, CompositeTask
from cornstalk.tasks.null import Null


class Ask(BaseModel):
    text: str


class Reply(BaseModel):
    digest: str


class Mark(CompositeTask):
    mark = Null(name="cli")

    def invoke(self, q: Ask) -> Reply:
        return Reply(digest=self.mark(text=q.text).digest)


app = App("mark", Mark())
