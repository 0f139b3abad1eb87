"""The demo's way to speak the question: text in, speech out, by the same voice as the answer."""

from pydantic import BaseModel

from cornstalk import App, CompositeTask, Stream
from cornstalk.tasks import TextToSpeech
from cornstalk.types import Audio


class Line(BaseModel):
    text: str


class Speech(BaseModel):
    speech: Stream[Audio]


class Speak(CompositeTask):
    voice = TextToSpeech()

    def invoke(self, line: Line) -> Speech:
        return Speech(speech=self.voice(text=line.text).audio)


app = App("speak", Speak())
