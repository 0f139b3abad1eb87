"""One null task over an input of every kind that a client can send, and one per file."""

import json
from typing import Any

from pydantic import BaseModel

from cornstalk import App, CompositeTask, Upload
from cornstalk.media import AudioUpload
from cornstalk.tasks.null import Null


class Ask(BaseModel):
    text: str
    count: int = 0
    ratio: float = 0.0
    loud: bool = False
    extra: Any = None
    sound: AudioUpload | None = None
    files: list[Upload] = []
    service_ms: float = 0.0


class Reply(BaseModel):
    digest: str
    files: list[str]


class Mixed(CompositeTask):
    value = Null(name="value")

    def invoke(self, q: Ask) -> Reply:
        plain = [json.dumps(v) for v in (q.count, q.ratio, q.loud, q.extra)]
        whole = self.value(text=q.text, texts=plain, upload=q.sound, service_ms=q.service_ms)
        return Reply(digest=whole.digest, files=[self.value(upload=f).digest for f in q.files])


app = App("mixed", Mixed())
