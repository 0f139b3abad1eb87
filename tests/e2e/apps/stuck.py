"""A pass that does not come back when it is told so by a result."""

import time

from pydantic import BaseModel

from cornstalk import App, CompositeTask
from cornstalk.tasks.null import Null


class Ask(BaseModel):
    text: str
    stuck: bool = False


class Reply(BaseModel):
    digest: str


class Stuck(CompositeTask):
    value = Null(name="value")

    def invoke(self, q: Ask) -> Reply:
        digest = self.value(text=q.text).digest
        if digest and q.stuck:
            time.sleep(3600)  # what a library may do that nobody has looked into
        return Reply(digest=digest)


app = App("stuck", Stuck())
