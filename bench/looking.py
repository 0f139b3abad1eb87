"""An app whose encoder looks at pictures and whose null task reads all that it made of them, on a tiny Qwen2.5-VL."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Final

from tests.components.media_files import picture
from tests.components.tiny_vl import WORDS, half, noise, tiny_vl
from tests.stack import Stack

_APP: Final = """
from pydantic import BaseModel

from cornstalk import App, CompositeTask
from cornstalk.media import ImageUpload
from cornstalk.tasks import ImageEncoder
from cornstalk.tasks.null import Null


class Ask(BaseModel):
    image: ImageUpload


class Reply(BaseModel):
    digest: str


class Look(CompositeTask):
    eyes = ImageEncoder(model={model!r}, dtype="float32")
    value = Null(name="read")

    def invoke(self, q: Ask) -> Reply:
        return Reply(digest=self.value(tensors=[self.eyes(image=q.image).embeddings]).digest)


app = App({name!r}, Look())
"""


async def eyes(folder: Path) -> str:
    """Makes the half of the model that sees; its path."""
    return half(await asyncio.to_thread(tiny_vl, folder / "vl", "qwen2_5_vl"), WORDS)


async def deploy(stack: Stack, folder: Path, model: str, *names: str) -> None:
    """An app of each name; they share the encoder."""
    for name in names:
        file = folder / f"{name}.py"
        file.write_text(_APP.format(model=model, name=name))
        await stack.deploy(file)


_gateways = itertools.count()


async def upload(stack: Stack, number: int, side: int) -> str:
    """The digest of the picture of this number, of `side` pixels."""
    file = await asyncio.to_thread(picture, noise(number, side, side), "PNG")
    client = stack.clients[next(_gateways) % len(stack.clients)]
    sent = await client.post("/uploads", content=file)
    digest: str = sent.raise_for_status().json()["digest"]
    return digest
