"""Gives a file back as it came, beside its digest."""

from pydantic import BaseModel

from cornstalk import App, CompositeTask, Upload
from cornstalk.tasks.null import Null


class Ask(BaseModel):
    file: Upload


class Reply(BaseModel):
    digest: str
    file: Upload
    files: list[Upload] = []


class Returned(CompositeTask):
    value = Null(name="value")

    def invoke(self, q: Ask) -> Reply:
        return Reply(digest=self.value(upload=q.file).digest, file=q.file, files=[q.file])


app = App("returned", Returned())
