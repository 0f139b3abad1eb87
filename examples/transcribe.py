"""Speech in, text out. Its ear is the one of spoken_answer.py: one component, one queue, one set of workers for both.

cornstalk deploy examples/transcribe.py
cornstalk invoke transcribe --audio speech.wav
"""

from pydantic import BaseModel

from cornstalk import App, CompositeTask
from cornstalk.media import AudioUpload
from cornstalk.tasks import SpeechToText


class Recording(BaseModel):
    audio: AudioUpload


class Transcript(BaseModel):
    text: str


class Transcribe(CompositeTask):
    ear = SpeechToText()

    def invoke(self, recording: Recording) -> Transcript:
        return Transcript(text=self.ear(recording.audio))


app = App("transcribe", Transcribe())
