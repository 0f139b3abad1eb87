"""Questions about pictures and videos, answered by a multimodal model whose eyes and words run in workers of their own.

    cornstalk deploy examples/vision_chat.py
    cornstalk invoke vision_chat "What do these show?" --image one.jpg
    cornstalk invoke vision_chat "What happens here?" --video clip.mp4
    cornstalk invoke vision_chat "Who wrote Hamlet?"

MODEL is a folder or a name in the Hugging Face cache of the machines of the workers; docs/models says which families
there are. Pictures and videos are looked at side by side, each once, and cross to the model as embeddings; a question
without any makes no work for the eyes. More eyes: `cornstalk workers`. Another model that sees with the same eyes: give
both to one ImageEncoder, and it serves both.
"""

from pydantic import BaseModel, Field

from cornstalk import App, CompositeTask, Stream
from cornstalk.media import ImageUpload, VideoUpload
from cornstalk.tasks import LLM, MultimodalLLM, Sight

MODEL = "Qwen/Qwen2.5-VL-3B-Instruct"


class Question(BaseModel):
    text: str
    image: ImageUpload | None = None
    images: list[ImageUpload] = Field(default=[], max_length=8)
    """More of them, in this order."""
    video: VideoUpload | None = None


class Answer(BaseModel):
    text: Stream[str]


class VisionChat(CompositeTask):
    model = MultimodalLLM(LLM(model=MODEL))

    def invoke(self, q: Question) -> Answer:
        images = [*([q.image] if q.image is not None else []), *q.images]
        videos = [q.video] if q.video is not None else []
        return Answer(text=self.model(Sight(prompt=q.text, images=images, videos=videos, max_tokens=256)))


app = App("vision_chat", VisionChat())
