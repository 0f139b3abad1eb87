"""A question, spoken, written, in a picture or in a video, is answered in text and in speech.

    cornstalk deploy examples/spoken_answer.py
    cornstalk invoke spoken_answer "What is the capital of France?" --save answer.wav
    cornstalk invoke spoken_answer --audio question.wav --save answer.wav
    cornstalk invoke spoken_answer --image question.png --save answer.wav
    cornstalk invoke spoken_answer --video question.mp4 --save answer.wav

Text begins to arrive while the model still writes, speech while the text still arrives. A written question makes no
work for the ear or the eye; with `speak` false there is none for the voice. Frames of videos are read by the workers
that read pictures.
"""

from pydantic import BaseModel, model_validator

from cornstalk import App, CompositeTask, Stream
from cornstalk.media import AudioUpload, ImageUpload, VideoUpload
from cornstalk.tasks import LLM, ReadText, SpeechToText, TextToSpeech, Watcher
from cornstalk.types import Audio


class Question(BaseModel):
    text: str | None = None
    audio: AudioUpload | None = None
    image: ImageUpload | None = None
    """A picture with the question in it."""
    video: VideoUpload | None = None
    """A video that shows the question, at once or bit by bit."""
    speak: bool = True

    @model_validator(mode="after")
    def exactly_one(self) -> "Question":
        if sum(given is not None for given in (self.text, self.audio, self.image, self.video)) != 1:
            raise ValueError("give exactly one of text, audio, image and video")
        return self


class Answer(BaseModel):
    question: str
    """As heard, as read, or as written."""
    text: Stream[str]
    speech: Stream[Audio] = b""


class SpokenAnswer(CompositeTask):
    ear = SpeechToText()
    eye = ReadText()
    watcher = Watcher()
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
        if q.video is not None:
            return "\n".join(shown.text for shown in self.watcher(q.video))
        return q.text


app = App("spoken_answer", SpokenAnswer())
