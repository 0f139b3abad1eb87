"""A question, spoken or written, is answered in text and in speech.

    cornstalk deploy examples/spoken_answer.py
    cornstalk invoke spoken_answer "What is the capital of France?" --save answer.wav
    cornstalk invoke spoken_answer --audio question.wav --save answer.wav

Text begins to arrive while the model still writes, speech while the text still arrives. A written question makes no
work for the ear; with `speak` false there is none for the voice.
"""

from pydantic import BaseModel, model_validator

from cornstalk import App, CompositeTask, Stream
from cornstalk.media import AudioUpload
from cornstalk.tasks import LLM, Ear, TextToSpeech
from cornstalk.types import Audio


class Question(BaseModel):
    text: str | None = None
    audio: AudioUpload | None = None
    speak: bool = True

    @model_validator(mode="after")
    def either_text_or_audio(self) -> "Question":
        if (self.text is None) == (self.audio is None):
            raise ValueError("give either text or audio")
        return self


class Answer(BaseModel):
    question: str
    """As heard, or as written."""
    text: Stream[str]
    speech: Stream[Audio] = b""


class SpokenAnswer(CompositeTask):
    ear = Ear()
    mind = LLM()
    voice = TextToSpeech()

    def invoke(self, q: Question) -> Answer:
        question = self.ear(q.audio) if q.text is None else q.text
        text = self.mind(prompt=question).text
        if not q.speak:
            return Answer(question=question, text=text)
        return Answer(question=question, text=text, speech=self.voice(text=text).audio)


app = App("spoken_answer", SpokenAnswer())
