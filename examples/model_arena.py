"""Three models answer one question about pictures side by side, and share one encoder.

    cornstalk deploy examples/model_arena.py
    cornstalk invoke model_arena "What does this show?" --image one.jpg

The sizes of Gemma 3 see with the same frozen tower, so one component is the eyes of all three, with a projector for
each: one set of workers to scale, one load of its weights. The answers stream at the same time, and a client picks the
better one. Another family: models whose towers differ have an ImageEncoder each, and the worker that is asked to share
them refuses to start.
"""

from pydantic import BaseModel, Field

from cornstalk import App, CompositeTask, Stream
from cornstalk.media import ImageUpload
from cornstalk.tasks import LLM, ImageEncoder, MultimodalLLM, Sight

MODELS = ("google/gemma-3-4b-it", "google/gemma-3-12b-it", "google/gemma-3-27b-it")


class Question(BaseModel):
    text: str
    image: ImageUpload | None = None
    images: list[ImageUpload] = Field(default=[], max_length=4)
    """More of them, in this order."""


class Said(BaseModel):
    model: str
    text: Stream[str]


class Round(BaseModel):
    answers: list[Said]


class ModelArena(CompositeTask):
    def __init__(self) -> None:
        eyes = ImageEncoder(model=MODELS[0], adapters=MODELS[1:])
        self.rivals = {name: MultimodalLLM(LLM(model=name), eyes) for name in MODELS}

    def invoke(self, q: Question) -> Round:
        images = [*([q.image] if q.image is not None else []), *q.images]
        sight = Sight(prompt=q.text, images=images, max_tokens=256)
        return Round(answers=[Said(model=name, text=rival(sight)) for name, rival in self.rivals.items()])


app = App("model_arena", ModelArena())
