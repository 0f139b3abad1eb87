"""One call of a service time."""

from pydantic import BaseModel

from cornstalk import App, CompositeTask
from cornstalk.tasks.null import Null


class Ask(BaseModel):
    text: str
    service_ms: float = 200.0


class Reply(BaseModel):
    digest: str


class Overload(CompositeTask):
    worker = Null(name="overload")

    def invoke(self, q: Ask) -> Reply:
        return Reply(digest=self.worker(text=q.text, service_ms=q.service_ms).digest)


app = App("overload", Overload())
