"""Values that no message could carry: a long prompt into two tasks, long outputs read, changed, passed on, answered."""

from pydantic import BaseModel

from cornstalk import App, CompositeTask
from cornstalk.tasks.null import Null, NullStream


class Ask(BaseModel):
    text: str
    items: list[str] = []
    repeat: int = 16_000
    pieces: int = 20_000
    calls: int = 1
    words: int = 100


class Reply(BaseModel):
    long: str
    talk: str
    changed: str
    digests: list[str]


class Large(CompositeTask):
    value, other = Null(name="value"), Null(name="other")
    talker = NullStream(name="talker")

    def invoke(self, q: Ask) -> Reply:
        long = self.value(text=q.text, repeat=q.repeat).digest
        other = self.other(text=q.text, texts=q.items).digest
        talk = self.talker(text=other, pieces=q.pieces).text
        listener = self.value(text=talk).digest
        both = self.other(texts=[long, other, q.text]).digest
        changed = long[::-1]  # waits for it, and is another large value
        last = self.other(text=changed, texts=[changed, talk[:40]]).digest
        more = [self.value(text=f"{i}" * 1000).digest for i in range(q.calls)]
        parts = [self.value(text=f"part {i}", repeat=q.words).digest for i in range(20)]
        joined = self.other(texts=parts).digest  # each fits into a message, together they may not
        return Reply(long=long, talk=talk, changed=changed, digests=[other, listener, both, last, joined, *more])


app = App("large", Large())
