"""Files are decoded off the event loop: a large one delays nobody, neither its neighbours nor the worker's own beat."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import PurePath
from types import FrameType
from typing import Any

import numpy as np
import pytest

from components.media.images import decode_image
from components.registry import engine_for
from cornstalk.task import UnitTask
from cornstalk.tasks import AudioEncoder, ReadText, SampleFrames
from cornstalk.tasks.reading import CountPages
from tests.components.fake_call import FakeCall
from tests.components.media_files import encoded_sound, pages, picture, scene, tone, video

pytestmark = [pytest.mark.models, pytest.mark.asyncio]


@contextmanager
def media_calls() -> Iterator[set[str]]:
    """The functions of components/media that this thread calls."""
    called: set[str] = set()

    def seen(frame: FrameType, event: str, _: Any) -> None:
        path = PurePath(frame.f_code.co_filename)
        if event == "call" and path.parent.name == "media" and path.parent.parent.name == "components":
            called.add(frame.f_code.co_qualname)

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        yield called
    finally:
        sys.setprofile(before)


CASES: dict[str, Callable[[], tuple[UnitTask, dict[str, Any]]]] = {
    "pages": lambda: (CountPages(), {"image": pages(scene(), scene())}),
    "picture": lambda: (ReadText(), {"image": picture(scene(), "PNG"), "page": 0}),
    "sound": lambda: (AudioEncoder(), {"audio": encoded_sound(tone(440, 16_000), 16_000, "ogg", "libopus")}),
    "video": lambda: (SampleFrames(), {"video": video([np.zeros((32, 48, 3), np.uint8)] * 4, fps=2), "most": 4}),
}


@pytest.mark.parametrize("kind", CASES)
async def test_no_engine_decodes_on_the_loop(kind: str) -> None:
    task, inputs = CASES[kind]()
    engine = engine_for(task)
    await engine.start()
    try:
        with media_calls() as called:
            await engine.run(FakeCall(**inputs))
    finally:
        await engine.stop()
    assert called == set()


async def test_what_is_called_on_the_loop_is_seen() -> None:
    with media_calls() as called:
        decode_image(picture(scene(), "PNG"))
    assert "decode_image" in called
