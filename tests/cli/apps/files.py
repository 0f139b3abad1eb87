"""A null task over files of every kind, which fails when it is told to."""

from pydantic import BaseModel

from cornstalk import App, CompositeTask, Upload
from cornstalk.media import AudioUpload, ImageUpload, VideoUpload
from cornstalk.tasks.null import Null


class Ask(BaseModel):
    text: str = ""
    sound: AudioUpload | None = None
    pictures: list[ImageUpload] = []
    film: VideoUpload | None = None
    other: Upload | None = None
    fail: str = ""


class Reply(BaseModel):
    digests: list[str]


class Files(CompositeTask):
    mark = Null(name="cli")

    def invoke(self, q: Ask) -> Reply:
        given = [q.sound, *q.pictures, q.film, q.other]
        digests = [self.mark(upload=upload).digest for upload in given if upload is not None]
        return Reply(digests=[self.mark(text=q.text, fail=q.fail).digest, *digests])


app = App("files", Files())
