"""A `serve` that answers with another stream each time that it runs: what no app may do, found after a crash."""

from pathlib import Path

from pydantic import BaseModel

from cornstalk import App, CompositeTask, Stream
from cornstalk.tasks.null import NullStream


class Ask(BaseModel):
    runs: str  # a file, to which each run adds a line


class Reply(BaseModel):
    text: Stream[str]


class Talk(CompositeTask):
    talker = NullStream(name="fickle")

    def invoke(self, q: Ask) -> Reply:
        return Reply(text=self.talker(text=q.runs, pieces=20, service_ms=50).text)


one, other = Talk(), Talk()


def run_of(file: Path) -> int:
    file.write_text((file.read_text() if file.exists() else "") + "ran\n")
    return file.read_text().count("ran")


async def serve(q: Ask) -> Reply:
    runs = run_of(Path(q.runs))
    first, second = await one(q), await other(q)
    return first if runs % 2 else second


app = App("fickle", serve)
