"""How many pages a picture has, by its headers."""

from __future__ import annotations

from typing import Any

from components.engine import Call
from components.loaded import Loaded
from components.media.images import count_pages
from cornstalk.tasks.reading import CountPages


class PageCounter(Loaded[CountPages]):
    slots = 4

    def load(self) -> None:
        import PIL.Image  # noqa: F401

    async def run(self, call: Call) -> dict[str, Any]:
        return {"pages": await self.off_loop(count_pages, call.inputs["image"])}
