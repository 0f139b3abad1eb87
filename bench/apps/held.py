"""One item that its worker holds for a while."""

from pydantic import BaseModel

from cornstalk import App, CompositeTask
from cornstalk.tasks.null import Null


class Ask(BaseModel):
    text: str
    service_ms: float


class Reply(BaseModel):
    digest: str


class Held(CompositeTask):
    holder = Null(name="holder")

    def invoke(self, q: Ask) -> Reply:
        return Reply(digest=self.holder(text=q.text, service_ms=q.service_ms).digest)


app = App("held", Held())
