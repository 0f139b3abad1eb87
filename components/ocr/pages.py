"""How many pages a picture has, by its headers."""

from __future__ import annotations

import asyncio
from typing import Any

from components.engine import Call
from components.media.images import count_pages
from cornstalk.errors import SetupError
from cornstalk.task import UnitTask
from cornstalk.tasks.reading import CountPages


class PageCounter:
    slots = 4

    def __init__(self, task: UnitTask) -> None:
        assert isinstance(task, CountPages)

    async def start(self) -> None:
        try:
            import PIL.Image  # noqa: F401
        except ImportError as error:
            raise SetupError(f"counting pages needs {error.name}: pip install 'cornstalk[models]'") from error

    async def stop(self) -> None:
        pass

    def stats(self) -> dict[str, float]:
        return {"batch": 1.0, "longest_step_s": 0.0}

    async def run(self, call: Call) -> dict[str, Any]:
        return {"pages": await asyncio.to_thread(count_pages, call.inputs["image"])}
