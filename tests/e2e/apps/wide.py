"""Many equal calls side by side."""

from pydantic import BaseModel

from cornstalk import App, CompositeTask
from cornstalk.tasks.null import Null


class Ask(BaseModel):
    text: str
    calls: int = 10
    service_ms: float = 200.0


class Reply(BaseModel):
    digests: list[str]


class Wide(CompositeTask):
    value = Null(name="wide")

    def invoke(self, q: Ask) -> Reply:
        return Reply(digests=[self.value(text=f"{q.text} {i}", service_ms=q.service_ms).digest for i in range(q.calls)])


app = App("wide", Wide())
