"""The same tasks in another app."""

from pydantic import BaseModel

from cornstalk import App, CompositeTask, Upload
from cornstalk.tasks.null import Null, NullCached


class Ask(BaseModel):
    file: Upload
    text: str = ""
    nbytes: int = 50_000
    service_ms: float = 0.0
    after_ms: float = 0.0


class Reply(BaseModel):
    seen: str
    read: str


class Looking(CompositeTask):
    eye = NullCached(name="looking-eye")
    value = Null(name="looking-mind")

    def invoke(self, q: Ask) -> Reply:
        eye = self.eye(upload=q.file, nbytes=q.nbytes, service_ms=q.service_ms)
        read = self.value(text=q.text, tensors=[eye.tensor], service_ms=q.after_ms)
        return Reply(seen=eye.digest, read=read.digest)


app = App("looking_too", Looking())
