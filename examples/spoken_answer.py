"""A question, spoken, written or in a picture, is answered in text and in speech.

    cornstalk deploy examples/spoken_answer.py
    cornstalk invoke spoken_answer "What is the capital of France?" --save answer.wav
    cornstalk invoke spoken_answer --audio question.wav --save answer.wav
    cornstalk invoke spoken_answer --image question.png --save answer.wav

Text begins to arrive while the model still writes, speech while the text still arrives. A written question makes no
work for the ear or the eye; with `speak` false there is none for the voice.
"""

from pydantic import BaseModel, model_validator

from cornstalk import App, CompositeTask, Stream
from cornstalk.media import AudioUpload, ImageUpload
from cornstalk.tasks import LLM, Ear, ReadText, TextToSpeech
from cornstalk.types import Audio


class Question(BaseModel):
    text: str | None = None
    audio: AudioUpload | None = None
    image: ImageUpload | None = None
    """A picture with the question in it."""
    speak: bool = True

    @model_validator(mode="after")
    def exactly_one(self) -> "Question":
        if sum(given is not None for given in (self.text, self.audio, self.image)) != 1:
            raise ValueError("give exactly one of text, audio and image")
        return self


class Answer(BaseModel):
    question: str
    """As heard, as read, or as written."""
    text: Stream[str]
    speech: Stream[Audio] = b""


class SpokenAnswer(CompositeTask):
    ear = Ear()
    eye = ReadText()
    mind = LLM()
    voice = TextToSpeech()

    def invoke(self, q: Question) -> Answer:
        question = self._question(q)
        text = self.mind(prompt=question).text
        if not q.speak:
            return Answer(question=question, text=text)
        return Answer(question=question, text=text, speech=self.voice(text=text).audio)

    def _question(self, q: Question) -> str:
        if q.audio is not None:
            return self.ear(q.audio)
        if q.image is not None:
            return self.eye(image=q.image).text
        return q.text


app = App("spoken_answer", SpokenAnswer())
