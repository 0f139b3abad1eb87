"""An app that shares the components of an Omni; its sound is made at once: bit for bit what transformers makes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_APP: Final = """
from cornstalk import App
from cornstalk.tasks.omni import Omni, Reply, Said

class Exact(Omni):
    def invoke(self, said: Said) -> Reply:
        heard = [] if said.audio is None else [self.ear(audio=said.audio).rows]
        seen = [self.eyes(image=image).embeddings for image in said.images]
        watched = [self.eyes(video=video) for video in said.videos]
        videos, times = [one.embeddings for one in watched], [one.times for one in watched]
        thought = self.thinker(
            prompt=said.text, audio=heard, images=seen, videos=videos, times=times, max_tokens=said.max_tokens
        )
        codes = self.talker(rows=thought.rows, max_codes=said.max_codes).codes
        return Reply(text=thought.text, speech=self.vocoder(codes=codes, whole=True).audio)

app = App({name!r}, Exact({model!r}, "float32"))
"""


def exact_app(name: str, folder: Path) -> str:
    """Its source."""
    return _APP.format(name=name, model=str(folder))
